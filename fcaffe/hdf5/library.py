"""The optional package h5py.

Calls that may fail for a file's content are within `asking` (fcaffe/input_files.py), which converts their errors.
Errors of fcaffe's own code are not converted.
"""

from __future__ import annotations

from typing import Any

from fcaffe.errors import DataError, FcaffeError


class Hdf5Error(FcaffeError):
    """An error in a file's content. The caller that opened the file adds its name."""


def h5py() -> Any:
    """The h5py module. Raises DataError, which says what to install, if it is missing."""
    try:
        import h5py
    except ImportError as problem:
        raise DataError("HDF5 files need h5py: pip install 'fcaffe[hdf5]' (or pip install h5py)") from problem
    return h5py
