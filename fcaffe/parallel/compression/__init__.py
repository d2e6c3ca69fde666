"""Gradients that take fewer bytes between workers; what is left out of them is made up for later (error feedback)."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel.compression.compression import Compression
from fcaffe.parallel.compression.front import Front
from fcaffe.parallel.compression.on_device import OnDevice
from fcaffe.parallel.compression.onebit import OneBit
from fcaffe.parallel.compression.sixteen_bit import Bf16, Fp16, SixteenBit
from fcaffe.parallel.compression.threshold import Threshold
from fcaffe.parallel.compression.topk import TopK
from fcaffe.parallel.reductions.reduction import Reduction, create_on_host

FIRST, AUTO = "first", "auto"  # the option that 16 bits have, and its value that a plan fills in

__all__ = ["Compression", "check_compression", "compressions", "is_compression", "make_compression", "register"]

_SCHEMES: dict[str, type[Compression]] = {scheme.name: scheme for scheme in (Fp16, Bf16, OneBit, Threshold, TopK)}


def compressions() -> list[str]:
    """The known schemes with their options and defaults, as --compress takes them."""
    options = {name: (f"{option}={value}" for option, value in _options(_SCHEMES[name]).items()) for name in _SCHEMES}
    return [f"{name}:{','.join(known)}" for name, known in options.items()]


def register(scheme: type[Compression]) -> type[Compression]:
    """Class decorator: lets `--compress` take the scheme by its `name`. Its keyword-only arguments are its options."""
    _SCHEMES[scheme.name] = scheme
    return scheme


def check_compression(text: str) -> None:
    """Raises UsageError if `--compress text` names no scheme, or options that it does not have."""
    _parse(text)


def is_compression(text: str) -> bool:
    return text.partition(":")[0] in _SCHEMES


def make_compression(text: str, comm: MPI.Intracomm, xp: Any = np, reduce: str = "auto") -> Reduction:
    """What `--compress NAME[:option=value,...]` asks for, over the ranks of `comm`, for arrays of the module `xp`.
    `reduce` names the reduction of what is not compressed. Collective. Raises UsageError."""
    scheme, options = _parse(text)
    in_part = options.get(FIRST, math.inf) < math.inf
    if in_part and xp is not np:
        raise UsageError(f"--compress {text}: on GPUs all gradients are compressed or none; leave out {FIRST}")
    if reduce != "auto" and not in_part:
        raise UsageError(f"--compress {text} has messages of its own: leave out --reduce {reduce}")
    compression = scheme(comm, **options)
    if isinstance(compression, SixteenBit) and in_part:
        return Front(compression, create_on_host(reduce, comm))
    return compression if xp is np else OnDevice(compression, xp)


def _parse(text: str) -> tuple[type[Compression], dict[str, Any]]:
    """Class and options. Raises UsageError."""
    name, _, settings = text.partition(":")
    if name not in _SCHEMES:
        raise UsageError(f"--compress {text}: unknown scheme '{name}'; known ones: {', '.join(compressions())}")
    known = _options(_SCHEMES[name])
    options: dict[str, Any] = {}
    for setting in settings.split(",") if settings else []:
        option, equals, value = setting.partition("=")
        if option not in known or not equals:
            takes = ", ".join(f"{one}=VALUE" for one in known)
            raise UsageError(f"--compress {text}: '{setting}' is no option=value that {name} knows; it takes {takes}")
        if option == FIRST and value == AUTO:
            raise UsageError(
                f"--compress {text}: how much cannot hide is looked up in a file: add --plan FILE, which `fcaffe plan "
                "--calibrate` writes between the hosts, or give MB, such as first=1"
            )
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
