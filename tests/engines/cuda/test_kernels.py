"""Our kernels as such: each source compiles for the GPU; how they are launched; what stands in front of them; and the
emulator that runs them here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines.cuda import kernels
from fcaffe.engines.cuda.kernels import Kernels, blocks_for, instances, source_text
from fcaffe.errors import FcaffeError
from tests.engines.cuda import emulator
from tests.engines.cuda.emulator import Emulated, LaunchError, run_kernel

emulated = pytest.mark.skipif(not emulator.has_compiler, reason="the emulator needs g++")
SOURCES = sorted(path.stem for path in kernels.SOURCES.glob("*.cu"))
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
NAMES = dict(zip(DTYPES, kernels.FLOATS, strict=True))
ARCHITECTURE = "sm_90"


def knows_architecture() -> bool:
    """Whether there is an nvcc, of CUDA 11.8 or later."""
    command = ["nvcc", "--list-gpu-code"]
    return bool(shutil.which("nvcc")) and ARCHITECTURE in subprocess.run(command, capture_output=True, text=True).stdout


gpu_compiler = pytest.mark.skipif(not knows_architecture(), reason=f"there is no nvcc that knows {ARCHITECTURE}")
MOST_STACK = 64  # bytes

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


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


REDUCTIONS = """
template <typename T> __global__ void reduce(const T* x, float* sums, float* largest, int count) {
    float sum = 0, most = -1e30f;
    GRID_STRIDE(int, i, count) {
        sum += to_float(x[i]);
        most = fmaxf(most, to_float(x[i]));
    }
    float first = block_sum(sum);
    sums[blockIdx.x * blockDim.x + threadIdx.x] = block_sum(first) / blockDim.x;
    largest[blockIdx.x * blockDim.x + threadIdx.x] = block_max(most);
}
"""


@emulated
@every_dtype
@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
def test_reductions(dtype: np.dtype, threads: int) -> None:
    x = np.random.default_rng(0).standard_normal(3001).astype(dtype)
    sums, largest = np.zeros((3, threads), np.float32), np.zeros((3, threads), np.float32)
    run_kernel(REDUCTIONS, f"reduce<{NAMES[dtype]}>", 3, threads, x, sums, largest, np.int32(3001))
    assert (sums == sums[:, :1]).all() and (largest == largest[:, :1]).all()  # in all threads
    np.testing.assert_allclose(sums[:, 0].sum(), x.astype(np.float64).sum(), rtol=1e-4, atol=1e-4)
    assert largest.max() == x.astype(np.float32).max()


PACKS = """
template <typename T, int N> __global__ void turn(const T* x, T* y) {
    float values[N], turned[N];
    load(x + threadIdx.x * N, values);
    for (int i = 0; i < N; ++i) turned[i] = values[N - 1 - i];
    store(y + threadIdx.x * N, turned);
}
"""


@emulated
@every_dtype
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_packs(dtype: np.dtype, n: int) -> None:
    if n * dtype.itemsize > 16:
        pytest.skip("no access is wider than 16 bytes")
    x, y = np.arange(5 * n).astype(dtype), np.zeros(5 * n, dtype)
    run_kernel(PACKS, f"turn<{NAMES[dtype]}, {n}>", 1, 5, x, y)
    assert (y.reshape(5, n) == x.reshape(5, n)[:, ::-1]).all()


EXAMPLES = """
__global__ void scan(const int* x, int* y) {
    int lane = threadIdx.x % 32, sum = x[threadIdx.x];
    for (int step = 1; step < 32; step *= 2) {
        int below = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += below;
    }
    y[threadIdx.x] = sum;
    int total = __shfl_sync(ALL_LANES, sum, 31), rest = total;
    for (int step = 16; step > 0; step /= 2) rest = min(rest, __shfl_down_sync(ALL_LANES, rest, step));
    unsigned odd = __ballot_sync(ALL_LANES, x[threadIdx.x] % 2);
    if (lane == 0) y[blockDim.x + threadIdx.x / 32] = total + __popc(odd) * 1000 + (rest - total);
}
__global__ void turned(const float* x, float* y) {
    extern __shared__ float row[];
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    row[threadIdx.y * blockDim.x + threadIdx.x] = x[threadIdx.y * blockDim.x + threadIdx.x];
    __syncthreads();
    atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.y == 1) return;
    y[threadIdx.x] = row[2 * blockDim.x - 1 - threadIdx.x] + 100 * count;
    __syncthreads();
}
__global__ void half_a_warp(float* x) {
    if (threadIdx.x < 16) x[0] = __shfl_xor_sync(ALL_LANES, x[0], 1);
    else __syncthreads();
}
__global__ void two_things(float* x) {
    if (threadIdx.x % 2) x[threadIdx.x] = __shfl_xor_sync(ALL_LANES, x[0], 1);
    else __syncwarp();
}
__global__ void part_of_a_warp(float* x) { x[threadIdx.x] = warp_sum(x[threadIdx.x]); }
__global__ void unwritten(float* x) {
    extern __shared__ float row[];
    x[threadIdx.x] = row[threadIdx.x];
}
"""


@emulated
def test_the_emulator_plays_warps() -> None:
    x = np.random.default_rng(0).integers(0, 100, 64, np.int32)
    y = np.zeros(66, np.int32)
    run_kernel(EXAMPLES, "scan", 1, 64, x, y)
    warps = x.reshape(2, 32)
    assert (y[:64].reshape(2, 32) == warps.cumsum(axis=1)).all()
    assert (y[64:] == warps.sum(axis=1) + (warps % 2).sum(axis=1) * 1000).all()


@emulated
def test_the_emulator_plays_blocks() -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    run_kernel(EXAMPLES, "turned", 2, (4, 2), x, y, shared=32)
    assert y.tolist() == [807, 806, 805, 804]
    run_kernel(EXAMPLES, "unwritten", 1, 4, y, shared=16)
    assert np.isnan(y).all()


@emulated
@pytest.mark.parametrize(
    ("name", "threads", "problem"),
    [
        ("half_a_warp", 32, "waits at __shfl_xor_sync for others that do not come"),
        ("two_things", 32, "is at __syncwarp, another of its warp at __shfl_xor_sync"),
        ("part_of_a_warp", 40, "reads a lane that takes no part in __shfl_xor_sync"),
        ("part_of_a_warp", 1025, "no GPU runs"),
    ],
)
def test_the_emulator_finds(name: str, threads: int, problem: str) -> None:
    with pytest.raises(LaunchError, match=problem):
        run_kernel(EXAMPLES, name, 1, threads, np.zeros(2000, np.float32))


@emulated
def test_the_emulator_finds_packs_at_odd_addresses() -> None:
    x = np.zeros(40, np.float32)
    with pytest.raises(LaunchError, match="16 bytes at an address that is no multiple"):
        run_kernel(PACKS, "turn<float, 4>", 1, 5, x[1:], x)


@emulated
@pytest.mark.parametrize(
    "args",
    [
        (np.zeros(4, np.float16), np.zeros(4, np.float32)),
        (np.zeros(4, np.float32),),
        (np.zeros(4, np.float32), np.float32(1)),
        (np.zeros(4, np.float32), np.zeros(4, np.float32), np.int32(1)),
    ],
)
def test_the_emulator_checks_arguments(args: tuple[Any, ...]) -> None:
    with pytest.raises(LaunchError, match=r"turned takes \(\*f4, \*f4\), not \("):
        run_kernel(EXAMPLES, "turned", 1, 4, *args)
