"""Compressed gradients: schemes that send fewer bytes between workers, with error feedback."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel.compression.compression import Compression, OnDevice
from fcaffe.parallel.compression.onebit import OneBit
from fcaffe.parallel.compression.sixteen_bit import Bf16, Fp16
from fcaffe.parallel.compression.topk import TopK
from fcaffe.parallel.reductions.reduction import Reduction

__all__ = ["Compression", "compressions", "make_compression", "parse_compression", "register"]

_SCHEMES: dict[str, type[Compression]] = {scheme.name: scheme for scheme in (Fp16, Bf16, OneBit, TopK)}


def compressions() -> list[str]:
    """The known schemes with their options and defaults, as --compress takes them."""
    found = []
    for name, scheme in _SCHEMES.items():
        options = ",".join(f"{option}={value}" for option, value in _options(scheme).items())
        found.append(f"{name}:{options}" if options else name)
    return found


def register(scheme: type[Compression]) -> type[Compression]:
    """Class decorator: lets `--compress` take the scheme by its `name`. Its keyword-only arguments are its options."""
    _SCHEMES[scheme.name] = scheme
    return scheme


def make_compression(text: str, comm: MPI.Intracomm, xp: Any = np) -> Reduction:
    """Create the reduction that `--compress NAME[:option=value,...]` names. Collective.

    Args:
        text: The flag's value.
        comm: The ranks that sum.
        xp: The module of the gradients' arrays. For CuPy they are copied through the host's memory.

    Raises:
        UsageError: The scheme or an option is unknown, or a value is out of range.
    """
    scheme, options = parse_compression(text)
    compression = scheme(comm, **options)
    return compression if xp is np else OnDevice(compression, xp)


def parse_compression(text: str) -> tuple[type[Compression], dict[str, Any]]:
    """The class and the options that `--compress text` names. Raises UsageError."""
    name, _, settings = text.partition(":")
    if name not in _SCHEMES:
        raise UsageError(f"--compress {text}: unknown scheme '{name}'; known ones: {', '.join(compressions())}")
    known = _options(_SCHEMES[name])
    options: dict[str, Any] = {}
    for setting in settings.split(",") if settings else []:
        option, equals, value = setting.partition("=")
        if option not in known or not equals:
            takes = ", ".join(f"{one}=VALUE" for one in known) or "no options"
            raise UsageError(f"--compress {text}: '{setting}' is no option=value that {name} knows; it takes {takes}")
        kind = type(known[option])
        try:
            options[option] = kind(value)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise UsageError(f"--compress {text}: {option} must be {wanted}, not '{value}'") from None
    return _SCHEMES[name], options


def _options(scheme: type[Compression]) -> dict[str, Any]:
    """Options and their defaults: the keyword-only arguments of the class."""
    arguments = inspect.signature(scheme).parameters.values()
    return {one.name: one.default for one in arguments if one.kind is one.KEYWORD_ONLY}
