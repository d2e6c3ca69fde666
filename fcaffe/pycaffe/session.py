"""What pycaffe keeps for the whole process: the mode, the random generator, where noise comes from, the log.

Only this interface has such a state; it is handed to nets and solvers as a Context when they are made.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from fcaffe import log as lines
from fcaffe.engines import Engine, cpu_engine, gpu_engine
from fcaffe.engines.cuda import libraries
from fcaffe.errors import UsageError
from fcaffe.net import Context, layer_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom

TRAIN: int = pb.TRAIN
TEST: int = pb.TEST

random = CaffeRandom(None)
noise = "caffe"


_on_gpu = False
_device = 0  # for GPU mode
_taken: int | None = None  # the GPU that has an engine
_solver_count = 1
_solver_rank = 0


@functools.cache
def _engine_on(gpu: int | None) -> Engine:
    """One for all nets, so that they share its temporary memory."""
    return cpu_engine() if gpu is None else gpu_engine(gpu)


def engine() -> Engine:
    """What computes in nets and solvers made now. Raises UsageError for what a GPU lacks."""
    global _taken
    if not _on_gpu:
        return _engine_on(None)
    if _taken not in (None, _device):
        raise UsageError(f"set_device({_device}): this process computes on GPU {_taken} already; start another one")
    made = _engine_on(_device)
    _taken = _device
    return made


def context() -> Context:
    """For a net made now."""
    return Context(engine(), random, noise, on_demand=True, shares_memory=True)


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
    """Start the generator that fillers, and noise under `set_rng('caffe')`, draw from; also for nets that exist."""
    random.set_state(CaffeRandom(seed).state())


def set_rng(stream: str) -> None:
    """Where Dropout and other noise in a net draw from, in nets and solvers made from now on.

    'caffe' (the default here): Caffe's generator, in Caffe's order. 'counter': a stream that depends on (seed, layer,
    iteration, index of the sample) only, whatever the number of workers.
    """
    global noise
    if stream not in ("caffe", "counter"):
        raise UsageError(f"set_rng({stream!r}): give 'caffe' or 'counter'")
    noise = stream


def layer_type_list() -> list[str]:
    """The registered layer types."""
    return layer_types()


def wait_for_device() -> None:
    """Until a GPU, in GPU mode, has done what nets and solvers have given it to do."""
    if _on_gpu and _taken is not None:
        _engine_on(_taken).synchronize()


def init_log(level: int | None = None, stderr: bool = True) -> None:
    """Drop lines of the log below `level`: 0 for information, 1 for warnings, 2 for errors.

    If `stderr` is false, Caffe writes the log to files in the temporary folder, and errors to standard error as well.
    Here there are no such files, but information and warnings are left out all the same.
    """
    if level is not None:
        lines.set_minimum(level if stderr else max(level, lines.LEVELS.index("E")))


def log(message: str) -> None:
    """Write a line of information to the log."""
    lines.of_script(message)


def solver_count() -> int:
    """How many processes train together, as `set_solver_count` has said."""
    return _solver_count


def set_solver_count(count: int) -> None:
    global _solver_count
    if count < 1:
        raise UsageError(f"set_solver_count({count}): give 1 or more")
    _solver_count = count


def solver_rank() -> int:
    """Which of them this process is, as `set_solver_rank` has said."""
    return _solver_rank


def set_solver_rank(rank: int) -> None:
    global _solver_rank
    if rank < 0:
        raise UsageError(f"set_solver_rank({rank}): give 0 or more")
    _solver_rank = rank


def set_multiprocess(multiprocess: bool) -> None:
    """Whether solvers that train together are processes, which they always are here."""


def has_nccl() -> bool:
    """Whether there is NCCL, which a script asks before it uses that."""
    return True
