"""Our kernels as such: each instance compiles for the GPU, and how they are launched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines.cuda import kernels
from fcaffe.engines.cuda.kernels import Kernels, blocks_for, expression, source_text
from fcaffe.engines.cuda.update import RULES
from fcaffe.errors import FcaffeError
from tests.engines.cuda import emulator, stand_in_cupy

emulated = pytest.mark.skipif(not emulator.has_compiler, reason="the emulator needs g++")
SOURCES = sorted(path.stem for path in kernels.SOURCES.glob("*.cu"))
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ARCHITECTURE = "sm_90"


def instances(source: str) -> list[str]:
    """All instances of the kernels of a source, by their template parameters: T a type, N values, a RULE."""
    found = []
    pattern = r"(?:template <([^>]*)>\s+)?__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\("
    for parameters, kernel in re.findall(pattern, (kernels.SOURCES / f"{source}.cu").read_text()):
        types: list[tuple[Any, ...]] = [()]
        if parameters:
            types = [(rule,) for rule in RULES.values()] if "RULE" in parameters else [(dtype,) for dtype in DTYPES]
        if "int N" in parameters:
            types = [(dtype, pack) for (dtype,) in types for pack in (1, 16 // dtype.itemsize)]
        found += [expression(kernel, each) for each in types]
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_nvrtc_compiles_every_instance(source: str) -> None:
    """As CuPy calls it, for which no GPU is needed."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    nvrtc = cupy.cuda.nvrtc
    options = (*kernels.OPTIONS, "-ftz=true", f"-arch={ARCHITECTURE}", "--device-as-default-execution-space")
    program = nvrtc.createProgram(source_text(source), f"{source}.cu", (), ())
    for name in instances(source):
        nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, options)
        assert all(nvrtc.getLoweredName(program, name) for name in instances(source))
    except cupy.cuda.nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`Kernels.launch` of a source of the test's own."""
    shutil.copy(kernels.TYPES, tmp_path)
    (tmp_path / "example.cu").write_text(
        """
        template <typename T, int TIMES> __global__ void add(const T* x, T* y, float z, int count) {
            GRID_STRIDE(int, i, count) y[i] = from_float<T>(to_float(x[i]) + TIMES * z);
        }
        __global__ void clear(float* x) { x[threadIdx.x] = 0; }
        """
    )
    (tmp_path / "wrong.cu").write_text("__global__ void wrong(int* x) { x[0] = nothing; }\n")
    monkeypatch.setattr(kernels, "SOURCES", tmp_path)
    return Kernels(stand_in_cupy.cupy).launch


@emulated
def test_instances_for_types_and_numbers(launch: Callable[..., None]) -> None:
    for dtype in DTYPES:
        x, y = np.arange(9).astype(dtype), np.zeros(9, dtype)
        for _ in range(2):
            launch("example", "add", (dtype, 2), 2, 256, x, y, np.float32(0.5), np.int32(8))
        assert y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    launch("example", "clear", (), (1, 1), (4, 1), x := np.arange(6, dtype=np.float32))
    assert x.tolist() == [0, 0, 0, 0, 4, 5]


@emulated
def test_what_kernels_refuse(launch: Callable[..., None]) -> None:
    x = np.zeros(4, np.float32)
    launch("example", "clear", (), 0, 4, x, x)  # no blocks, no launch
    with pytest.raises(TypeError, match=r"clear takes NumPy scalars such as numpy.int32\(3\)"):
        launch("example", "clear", (), 1, 4, x, 3)
    with pytest.raises(FcaffeError, match=r"kernel wrong of sources/wrong.cu cannot be compiled.*nothing"):
        launch("wrong", "wrong", (), 1, 4, x)


def test_blocks_for() -> None:
    assert [blocks_for(count) for count in (0, 1, 256, 257)] == [0, 1, 1, 2]
    assert blocks_for(1025, threads=128, per_thread=4) == 3
    assert blocks_for(1 << 40) == kernels.MOST_BLOCKS
