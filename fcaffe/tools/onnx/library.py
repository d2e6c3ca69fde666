"""The optional packages onnx, which reads, writes and checks files, and onnxruntime, which runs them."""

from __future__ import annotations

from dataclasses import dataclass
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
    try:
        import onnx
    except ImportError as problem:
        raise UsageError("ONNX files need the package onnx: pip install 'fcaffe[onnx]'") from problem
    return onnx


def onnxruntime() -> Any:
    """The package onnxruntime. Raises UsageError, which says what to install, if it is missing."""
    try:
        import onnxruntime
    except ImportError as problem:
        raise UsageError("ONNX files are run by the package onnxruntime: pip install 'fcaffe[onnx]'") from problem
    return onnxruntime
