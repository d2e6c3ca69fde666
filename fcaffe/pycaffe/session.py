"""State of pycaffe for the whole process: the mode, the random generator, the source of noise; and its Timer.

Nets and solvers get this state as a Context when they are created.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable

from fcaffe import log as lines
from fcaffe.engines import Engine, cpu_engine, gpu_engine
from fcaffe.engines.cuda import libraries
from fcaffe.errors import UsageError
from fcaffe.net import Context, layer_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom

__all__ = [  # of Caffe's interface
    "TEST",
    "TRAIN",
    "Timer",
    "has_nccl",
    "init_log",
    "layer_type_list",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_rng",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]

TRAIN: int = pb.TRAIN
TEST: int = pb.TEST

random = CaffeRandom(None)
noise_seed = 0  # of the stream `counter`
noise = "caffe"


_on_gpu = False
_device = 0  # for GPU mode
_taken: int | None = None  # the GPU that has an engine
_solver_count = 1
_solver_rank = 0


@functools.cache
def _engine_on(gpu: int | None) -> Engine:
    """Return the engine of a GPU or the CPU; all nets share it and its workspace."""
    return cpu_engine() if gpu is None else gpu_engine(gpu)


def engine() -> Engine:
    """Return the engine for new nets and solvers. Raises UsageError if the GPU cannot be used."""
    global _taken
    if not _on_gpu:
        return _engine_on(None)
    if _taken not in (None, _device):
        raise UsageError(f"set_device({_device}): this process computes on GPU {_taken} already; start another one")
    made = _engine_on(_device)
    _taken = _device
    return made


def context() -> Context:
    return Context(engine(), random, noise, noise_seed, on_demand=True, shares_memory=True)


def set_mode_cpu() -> None:
    """Compute on the CPU, which is the default, in nets and solvers made from now on."""
    global _on_gpu
    _on_gpu = False


def set_mode_gpu() -> None:
    """Compute on the GPU of `set_device`, or on GPU 0, in nets and solvers made from now on.

    Raises UsageError, which says what is missing; warns and stays on the CPU with FCAFFE_GPU=optional.
    """
    global _on_gpu
    _on_gpu = _is_usable("set_mode_gpu()", lambda: libraries.load(_device, "fp32"))


def set_device(device: int) -> None:
    """Choose the GPU for GPU mode, now or later.

    Raises UsageError if there is no GPU of this number; warns with FCAFFE_GPU=optional.
    """
    global _device
    if _is_usable(f"set_device({device})", lambda: libraries.find_gpu(device)):
        _device = device


def _is_usable(call: str, load: Callable[[], object]) -> bool:
    """Whether `load` finds the GPU that `call` asks for. Raises UsageError if it does not and must."""
    try:
        load()
    except UsageError as problem:
        if os.environ.get("FCAFFE_GPU") != "optional":
            raise UsageError(
                f"{problem}. To compute on the CPU call caffe.set_mode_cpu(), not {call}, or set FCAFFE_GPU=optional"
            ) from problem
        lines.warning(f"{call}: {problem}. The CPU computes (FCAFFE_GPU=optional)")
        return False
    return True


def set_random_seed(seed: int) -> None:
    """Seed the generator of fillers and noise. Existing nets use it too, but for noise under `set_rng('counter')`."""
    global noise_seed
    noise_seed = seed
    random.set_state(CaffeRandom(seed).state())


def set_rng(stream: str) -> None:
    """Set the stream for Dropout and other noise, in nets and solvers created from now on.

    'caffe' (the default here): Caffe's generator, in Caffe's order. 'counter': a stream that depends on (seed, layer,
    pass, index of the row) only, whatever the number of workers. A net of a script numbers its forward passes.
    """
    global noise
    if stream not in ("caffe", "counter"):
        raise UsageError(f"set_rng({stream!r}): give 'caffe' or 'counter'")
    noise = stream


def layer_type_list() -> list[str]:
    return layer_types()


def wait_for_device() -> None:
    """Wait until the GPU, in GPU mode, has finished all work of nets and solvers."""
    if _on_gpu and _taken is not None:
        _engine_on(_taken).synchronize()


def init_log(level: int | None = None, stderr: bool = True) -> None:
    """Drop lines of the log below `level`: 0 for information, 1 for warnings, 2 for errors.

    If `stderr` is false, Caffe writes the log to files in the temporary folder, and errors to standard error as well.
    fcaffe writes no such files, but omits information and warnings as well.
    """
    if level is not None:
        lines.set_minimum(level if stderr else max(level, lines.LEVELS.index("E")))


def log(message: str) -> None:
    lines.of_script(message)


def solver_count() -> int:
    """Return the number of processes that train together, from `set_solver_count`."""
    return _solver_count


def set_solver_count(count: int) -> None:
    global _solver_count
    if count < 1:
        raise UsageError(f"set_solver_count({count}): give 1 or more")
    _solver_count = count


def solver_rank() -> int:
    """Return the rank of this process, from `set_solver_rank`."""
    return _solver_rank


def set_solver_rank(rank: int) -> None:
    global _solver_rank
    if rank < 0:
        raise UsageError(f"set_solver_rank({rank}): give 0 or more")
    _solver_rank = rank


def set_multiprocess(multiprocess: bool) -> None:
    """Accepted as in Caffe; solvers that train together always are processes here."""


def has_nccl() -> bool:
    """Return True: the class NCCL is there."""
    return True


class Timer:
    """Measures the time from `start()` to `stop()`; `ms` has it in milliseconds, and stops a timer that still runs."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._seconds: float | None = None

    def start(self) -> None:
        if self._started is None:
            wait_for_device()
            self._started = time.perf_counter()

    def stop(self) -> None:
        if self._started is not None:
            wait_for_device()
            self._seconds, self._started = time.perf_counter() - self._started, None

    @property
    def ms(self) -> float:
        self.stop()
        if self._seconds is None:
            lines.timer_never_run()
            return 0.0
        return self._seconds * 1000
