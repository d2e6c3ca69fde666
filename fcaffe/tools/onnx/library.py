"""The optional packages onnx, which reads, writes and checks files, and onnxruntime, which runs them."""

from __future__ import annotations

from typing import Any

from fcaffe.errors import UsageError

OPSET = 21  # the version of ONNX's operators that is written: ONNX Runtime, OpenVINO and OpenCV all read it
OPSETS = range(17, OPSET + 1)  # those that can be asked for


def onnx() -> Any:
    """The package onnx; without it a UsageError says what to install."""
    try:
        import onnx
    except ImportError as problem:
        raise UsageError("ONNX files need the package onnx: pip install 'fcaffe[onnx]'") from problem
    return onnx


def onnxruntime() -> Any:
    """The package onnxruntime; without it a UsageError says what to install."""
    try:
        import onnxruntime
    except ImportError as problem:
        raise UsageError("--check runs the ONNX file with onnxruntime: pip install 'fcaffe[onnx]'") from problem
    return onnxruntime
