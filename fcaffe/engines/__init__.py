"""Where arrays live and what computes on them."""

from __future__ import annotations

import importlib.util
from typing import Any

from fcaffe.engines.engine import Engine
from fcaffe.engines.numpy_engine import NumpyEngine
from fcaffe.errors import UsageError
from fcaffe.onednn_library import find_onednn

__all__ = ["GPU_MATHS", "MISSING", "Engine", "NumpyEngine", "cpu_engine", "find_onednn", "gpu_engine", "missing"]

MISSING = "oneDNN is not here (pip install onednn-cpu-gomp, for Linux on x86-64)"
NO_NUMBA = "--math winograd, which is faster for 3x3 and 5x5 kernels, needs Numba (pip install numba)"
GPU_MATHS = ("tf32", "fp16")  # that CPUs have not


def cpu_engine(math: str = "fp32", name: str = "") -> Engine:
    """The engine for CPUs: oneDNN where its library is, else NumPy; or the one of this name. Raises UsageError.

    `math` is fp32, bf16 (`fcaffe.engines.onednn.bfloat16`) or winograd (`fcaffe.engines.winograd`).
    """
    if math in GPU_MATHS:
        raise UsageError(f"--math {math} needs a GPU (--gpu 0); on CPUs there are fp32, winograd and bf16")
    path = find_onednn() if name != "numpy" else None
    if path:
        if math == "bf16":
            from fcaffe.engines.onednn.bfloat16 import Bfloat16Engine

            return Bfloat16Engine(path)
        if math == "winograd":
            try:
                from fcaffe.engines.winograd.engine import WinogradEngine
            except ImportError as error:
                raise UsageError(f"{NO_NUMBA}: {error}") from None
            return WinogradEngine(path)
        from fcaffe.engines.onednn.engine import OneDnnEngine

        return OneDnnEngine(path)
    if name == "onednn":
        raise UsageError(f"{MISSING}; the NumPy engine does without")
    if math != "fp32":
        raise UsageError(f"--math {math} needs the oneDNN engine" + ("" if name else f", and {MISSING}"))
    return NumpyEngine()


def missing() -> str:
    """What to install for a faster engine on CPUs; empty if nothing is missing."""
    if not find_onednn():
        return MISSING
    return "" if importlib.util.find_spec("numba") else NO_NUMBA


def gpu_engine(device: int, *settings: Any, **named: Any) -> Engine:
    """The engine on the GPU of this number, which becomes the process's current one; arguments as of CudaEngine.

    Raises UsageError, which says what is missing.
    """
    from fcaffe.engines.cuda.engine import CudaEngine

    return CudaEngine(device, *settings, **named)
