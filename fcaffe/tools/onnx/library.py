"""The optional packages onnx, which reads, writes and checks files, and onnxruntime, which runs them."""

from __future__ import annotations

from typing import Any

from fcaffe.errors import UsageError

# The newest that the runtimes of docs/ways-out.md all read.
OPSET = 21


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
