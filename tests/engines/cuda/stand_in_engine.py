"""The GPU engine on the stand-ins for CuPy and cuDNN: the very code, on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fcaffe.engines.cuda import cublas, libraries
from fcaffe.engines.cuda.engine import CudaEngine
from tests.engines.cuda import stand_in_cudnn, stand_in_cupy


def install(monkeypatch: pytest.MonkeyPatch | None) -> None:
    """Let engines made from now on stand on the stand-ins, for the length of a test, or for good."""
    replace = monkeypatch.setattr if monkeypatch else setattr
    stand_in_cupy.install(monkeypatch)
    stand_in_cupy.reset()
    replace(libraries, "load", lambda device=0, math="fp32": (stand_in_cupy.cupy, stand_in_cudnn))
    replace(cublas, "open_library", lambda cuda: stand_in_cupy.CublasLibrary())
    replace(libraries, "find_gpu", lambda device: SimpleNamespace(name="stand-in", tf32_gain=1))


def engine(math: str = "fp32", **options: Any) -> CudaEngine:
    """After `install`."""
    return CudaEngine(0, math, **options)
