"""The optional packages onnx, which reads, writes and checks files, and onnxruntime, which runs them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fcaffe.errors import UsageError

OPSET = 21  # default version of ONNX's operators, which ONNX Runtime, OpenVINO and OpenCV read
OPSETS = range(17, OPSET + 1)  # supported versions


@dataclass(frozen=True)
class ToOnnx:
    """Options of a new ONNX file."""

    preprocessing: Any = None  # a Preprocessing: operators in front of the net
    fold: bool = False  # whether to fold normalisations into weights
    opset: int = OPSET  # the version of ONNX's operators


def onnx() -> Any:
    """The package onnx. Raises UsageError, which says what to install, if it is missing."""
    return _package("onnx", "ONNX files need")


def onnxruntime() -> Any:
    """The package onnxruntime. Raises UsageError, which says what to install, if it is missing."""
    return _package("onnxruntime", "ONNX files are run by")


@functools.cache
def _package(name: str, use: str) -> Any:
    try:
        return import_module(name)
    except ImportError as problem:
        raise UsageError(f"{use} the package {name}: pip install onnx onnxruntime") from problem
