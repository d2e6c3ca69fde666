"""The solvers' update of all parameters in one kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fcaffe.engines.base import EngineBase
from fcaffe.engines.cuda.kernels import THREADS, Kernels
from fcaffe.engines.cuda.loss_scale import LossScale
from fcaffe.engines.memory import Array

CHUNK = 4096  # values that a block of threads updates; a multiple of 4, which are read at once
RULES = {"SGD": 0, "Nesterov": 1, "AdaGrad": 2, "RMSProp": 3, "AdaDelta": 4, "Adam": 5}  # as in sources/update.cu


class Part(NamedTuple):
    """A parameter's slice of the flat buffers, its weight decay and its multiplier of the rate."""

    span: slice
    decay: float
    lr_mult: float


class Settings(NamedTuple):
    """The numbers of a solver that its rule may need, by the names that they have in its prototxt."""

    momentum: float = 0.0
    momentum2: float = 0.0
    delta: float = 0.0
    rms_decay: float = 0.0


@dataclass
class UpdateTable:
    """Device arrays with one entry for each chunk of the flat buffers: start, length, multipliers of its parameter."""

    starts: Array
    lengths: Array
    decays: Array
    lr_mults: Array
    unscaled: Array  # 1, the scale of a loss that was not scaled
    regularization: str


class Update(EngineBase):
    """The plain rules, bit for bit, in one pass over memory.

    Numbers that change from step to step are read on the device. `step` has the rate and the factor of the gradients;
    the inverse of the `loss_scale` is another factor. If `overflow` is not 0, the kernel changes nothing.
    """

    kernels: Kernels
    step: Array  # float32 (2,)
    overflow: Array  # int32 (1,)
    loss_scale: LossScale | None

    updates_at_once = True

    def prepare_update(self, parts: Sequence[Part], regularization: str) -> UpdateTable:
        """The table of parameters that update_all takes; the regularization is "L1" or "L2"."""
        chunks: list[tuple[int, int, float, float]] = []
        for slice_, decay, lr_mult in parts:
            cuts = [slice_.start, *range(slice_.start // CHUNK * CHUNK + CHUNK, slice_.stop, CHUNK), slice_.stop]
            chunks += [(a, b - a, decay, lr_mult) for a, b in itertools.pairwise(cuts) if a < b]
        starts, lengths, decays, lr_mults = zip(*chunks, strict=True) if chunks else ((), (), (), ())

        def on_device(values: Sequence[float], dtype: type) -> Array:
            return self.xp.asarray(np.array(values, dtype))

        return UpdateTable(
            on_device(starts, np.int64),
            on_device(lengths, np.int32),
            on_device(decays, np.float32),
            on_device(lr_mults, np.float32),
            on_device([1], np.float32),
            regularization,
        )

    def update_all(
        self,
        rule: str,
        table: UpdateTable,
        data: Array,
        diff: Array,
        history: Sequence[Array],
        settings: Settings,
    ) -> None:
        """Scale the gradients, regularise, and apply the rule of solver type `rule` to all parameters of the `table`.

        `CudaEngine.set_step` has set the rate, which includes Adam's bias correction, and the factor of the gradients.
        """
        self.kernels.launch(
            "update",
            "update",
            (RULES[rule],),
            len(table.starts),
            THREADS,
            data,
            diff,
            history[0],
            history[-1],
            table.starts,
            table.lengths,
            table.decays,
            table.lr_mults,
            self.step,
            self.loss_scale.inverse if self.loss_scale else table.unscaled,
            self.overflow,
            np.int32(table.regularization == "L1"),
            *(np.float32(number) for number in settings),
        )
