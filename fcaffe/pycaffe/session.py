"""What pycaffe keeps for the whole process: the mode, the random generator, where noise comes from.

Only this interface has such a state; it is handed to nets and solvers as a Context when they are made.
"""

from __future__ import annotations

import functools

from fcaffe.engines import Engine, cpu_engine
from fcaffe.errors import UsageError
from fcaffe.net import Context, layer_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom

TRAIN: int = pb.TRAIN
TEST: int = pb.TEST

random = CaffeRandom(None)
noise = "caffe"


@functools.cache
def engine() -> Engine:
    """One for all nets, so that they share its temporary memory."""
    return cpu_engine()


def context() -> Context:
    """For a net made now."""
    return Context(engine(), random, noise)


def set_mode_cpu() -> None:
    """Compute on the CPU, which is the default."""


def set_mode_gpu() -> None:
    raise UsageError("set_mode_gpu: this version of fcaffe computes on the CPU only; leave the call out")


def set_device(device: int) -> None:
    """Which GPU a later set_mode_gpu takes; without one, as in Caffe, it says so."""
    raise UsageError(f"set_device({device}): this version of fcaffe computes on the CPU only; leave the call out")


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
