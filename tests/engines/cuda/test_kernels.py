"""Our kernels as such: each source compiles for the GPU; how they are launched; what stands in front of them; and the
emulator that runs them here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines.cuda import kernels
from fcaffe.engines.cuda.kernels import Kernels, blocks_for, instances, source_text
from fcaffe.errors import FcaffeError
from tests.engines.cuda import emulator
from tests.engines.cuda.emulator import Emulated

emulated = pytest.mark.skipif(not emulator.has_compiler, reason="the emulator needs g++")
SOURCES = sorted(path.stem for path in kernels.SOURCES.glob("*.cu"))
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ARCHITECTURE = "sm_90"


def knows_architecture() -> bool:
    """Whether there is an nvcc, of CUDA 11.8 or later."""
    command = ["nvcc", "--list-gpu-code"]
    return bool(shutil.which("nvcc")) and ARCHITECTURE in subprocess.run(command, capture_output=True, text=True).stdout


gpu_compiler = pytest.mark.skipif(not knows_architecture(), reason=f"there is no nvcc that knows {ARCHITECTURE}")
MOST_STACK = 64  # bytes


@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_lists_its_instances(source: str) -> None:
    text = (kernels.SOURCES / f"{source}.cu").read_text()
    written = set(re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(", text))
    assert written == {name.split("<")[0] for name in instances(source)}
    assert "#include" not in text


@gpu_compiler
@pytest.mark.parametrize("source", SOURCES)
def test_nvcc_compiles_every_instance(source: str, tmp_path: Path) -> None:
    """And hardly a register of theirs is kept in memory, nor an array."""
    addresses = ", ".join(f"(const void*)&{name}" for name in instances(source))
    file = tmp_path / f"{source}.cu"
    file.write_text(f"{source_text(source)}\nconst void* compiled_instances[] = {{{addresses}}};\n")
    command = ["nvcc", "-std=c++17", f"-arch={ARCHITECTURE}", "-cubin", "-Xptxas", "-v", "-o", f"{file}bin", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    frames = re.findall(r"(\w+)\n\s+(\d+) bytes stack frame", done.stderr)
    assert len(frames) >= len(instances(source))
    assert not [name for name, size in frames if int(size) > MOST_STACK]


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


class Module:
    """Stands for the module cupy."""

    def __init__(self) -> None:
        self.compiled: list[list[str]] = []

    def RawModule(self, code: str, options: tuple[str, ...], name_expressions: list[str]) -> Emulated:  # noqa: N802
        self.compiled.append(name_expressions)
        return Emulated(code, options=options, name_expressions=name_expressions)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source of its own."""
    shutil.copy(kernels.TYPES, tmp_path)
    (tmp_path / "example.cu").write_text(
        """
        INSTANCES(add, FLOATS, <float, 2>)
        template <typename T, int TIMES = 1> __global__ void add(const T* x, T* y, float z, int count) {
            GRID_STRIDE(int, i, count) y[i] = from_float<T>(to_float(x[i]) + TIMES * z);
        }
        INSTANCES(clear)
        __global__ void clear(float* x) { x[threadIdx.x] = 0; }
        """.replace("\n        ", "\n")
    )
    (tmp_path / "wrong.cu").write_text("INSTANCES(wrong)\n__global__ void wrong(int* x) { x[0] = nothing; }\n")
    monkeypatch.setattr(kernels, "SOURCES", tmp_path)
    kernels.instances.cache_clear()
    yield
    kernels.instances.cache_clear()


@emulated
@pytest.mark.usefixtures("example")
def test_kernels_are_compiled_once_and_by_their_first_type() -> None:
    module = Module()
    of_example = Kernels(module)
    for dtype in DTYPES:
        x, y = np.arange(9).astype(dtype), np.zeros(9, dtype)
        for _ in range(2):
            of_example.launch("example", "add", (dtype,), 2, 256, x, y, np.float32(1), np.int32(8))
        assert y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    x, y = np.arange(9, dtype=np.float32), np.zeros(9, np.float32)
    of_example.launch("example", "add", (DTYPES[0], 2), (1, 1), (32, 2), x, y, np.float32(2), np.int32(9))
    of_example.launch("example", "clear", (), 1, 4, x)
    assert y[8] == 12 and x.tolist() == [0, 0, 0, 0, 4, 5, 6, 7, 8]
    groups = [["add<float>", "add<float, 2>"], ["add<half_t>"], ["add<bfloat_t>"], ["clear"]]
    assert module.compiled == groups


@emulated
@pytest.mark.usefixtures("example")
def test_what_kernels_refuse() -> None:
    of_example = Kernels(Module())
    x = np.zeros(4, np.float32)
    of_example.launch("example", "clear", (), 0, 4, x, x)  # no blocks, no launch
    with pytest.raises(TypeError, match=r"clear takes NumPy scalars such as numpy.int32\(3\)"):
        of_example.launch("example", "clear", (), 1, 4, x, 3)
    with pytest.raises(
        FcaffeError, match=r"example.cu has no add<int64>; INSTANCES there lists add<float>, add<half_t>"
    ):
        of_example.launch("example", "add", (np.dtype(np.int64),), 1, 4, x)
    with pytest.raises(FcaffeError, match=r"kernel wrong of sources/wrong.cu cannot be compiled.*nothing"):
        of_example.launch("wrong", "wrong", (), 1, 4, x)


def test_blocks_for() -> None:
    assert [blocks_for(count) for count in (0, 1, 256, 257)] == [0, 1, 1, 2]
    assert blocks_for(1025, threads=128, per_thread=4) == 3
    assert blocks_for(1 << 40) == kernels.MOST_BLOCKS
