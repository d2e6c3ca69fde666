"""The optional package h5py.

Every call of it that may fail because of what is in a file is within `asking`, of fcaffe/input_files.py; errors of our
own code pass through as they are.
"""

from __future__ import annotations

from typing import Any

from fcaffe.errors import DataError, FcaffeError


class Hdf5Error(FcaffeError):
    """What is wrong with a file, which whoever has opened it names."""


def h5py() -> Any:
    """The h5py module; without it a DataError says what to install."""
    try:
        import h5py
    except ImportError as problem:
        raise DataError("HDF5 files need h5py: pip install 'fcaffe[hdf5]' (or pip install h5py)") from problem
    return h5py
