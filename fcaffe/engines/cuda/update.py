"""The solvers' update of all parameters in one kernel, and the scale of the loss, which keeps float16 gradients from
vanishing (Micikevicius et al., 2018)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fcaffe.engines.base import EngineBase
from fcaffe.engines.cuda.kernels import THREADS, Kernels, blocks_for
from fcaffe.engines.cuda.operands import NULL
from fcaffe.engines.memory import Array

CHUNK = 4096  # values that a block of threads updates; a multiple of 4, which are read at once
RULES = {"SGD": 0, "Nesterov": 1, "AdaGrad": 2, "RMSProp": 3, "AdaDelta": 4, "Adam": 5}  # as in sources/update.cu
FIRST, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**24  # of an adapted scale
PATIENCE = 2000  # updates without overflow before it is doubled


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


class LossScale:
    """A `fixed` scale, or an adapted one for None.

    If a gradient is not finite, the update is skipped and the adapted scale is halved. After 2000 updates without
    overflow it is doubled. All state stays on the device.

    Each iteration calls `apply` before backward; `check` after the sum over the workers, so that all workers decide
    alike; the engine's update, which divides by the scale; and `adjust`. `check` writes `overflow` (int32, (1,)), which
    the update and `adjust` read.
    """

    def __init__(self, xp: Any, kernels: Kernels, overflow: Array, fixed: float | None = None) -> None:
        self.xp, self.kernels, self.overflow = xp, kernels, overflow
        self.patience = PATIENCE if fixed is None else 0
        scale = FIRST if fixed is None else fixed
        self._scales = xp.asarray(np.array([scale, 1 / scale], np.float32))
        self._steps = xp.zeros(2, np.int32)  # updates since the last change of the scale, and skipped ones in all

    @property
    def scale(self) -> Array:
        """(1,): the factor of the losses."""
        return self._scales[:1]

    @property
    def inverse(self) -> Array:
        """(1,): the factor of the gradients in the update."""
        return self._scales[1:]

    def state(self) -> dict[str, np.ndarray]:
        """For snapshots; empty for a fixed scale."""
        return {"scales": self._scales.get(), "steps": self._steps.get()} if self.patience else {}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from what `state` returned. A fixed scale stays; so does any scale if the snapshot has none."""
        if self.patience and state:
            self._scales[...] = self.xp.asarray(state["scales"].astype(np.float32))
            self._steps[...] = self.xp.asarray(state["steps"].astype(np.int32))

    def apply(self, losses: Iterable[tuple[Array, float]]) -> None:
        """diff = weight * scale, for the gradient and the weight of each loss."""
        for diff, weight in losses:
            diff[...] = self._scales[0] * np.float32(weight)

    def check(self, gradients: Array) -> None:
        """Set `overflow` if one of the flat float32 gradients is not finite."""
        blocks, count = blocks_for(gradients.size, per_thread=4), np.int64(gradients.size)
        self.kernels.launch("update", "find_overflow", (), blocks, THREADS, gradients, count, self.overflow)

    def adjust(self) -> None:
        """After the update: adapt the scale for the next iteration, and clear `overflow`."""
        good, skipped = self._steps[:1], self._steps[1:]
        good += 1
        good *= 1 - self.overflow
        skipped += self.overflow
        if self.patience:
            grows = good == self.patience
            good *= 1 - grows
            factor = (1 + grows) * (1 - 0.5 * self.overflow)
            self.scale[...] = (self.scale * factor).clip(SMALLEST, LARGEST)
            self.inverse[...] = 1 / self.scale
        self.overflow[...] = 0


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

    def prepare_update(self, parts: Sequence[Part]) -> list[Array]:
        """The table of parameters that update_all takes: start, length and multipliers of each chunk of the flat
        buffers."""
        chunks: list[tuple[int, int, float, float]] = []
        for slice_, decay, lr_mult in parts:
            cuts = [slice_.start, *range(slice_.start // CHUNK * CHUNK + CHUNK, slice_.stop, CHUNK), slice_.stop]
            chunks += [(a, b - a, decay, lr_mult) for a, b in itertools.pairwise(cuts) if a < b]
        columns = zip(*chunks, strict=True) if chunks else ((),) * 4
        types = np.int64, np.int32, np.float32, np.float32
        return [self.xp.asarray(np.array(column, kind)) for column, kind in zip(columns, types, strict=True)]

    def update_all(
        self,
        rule: str,
        table: Sequence[Array],
        data: Array,
        diff: Array,
        history: Sequence[Array],
        settings: Settings,
        l1: bool,
    ) -> None:
        """Scale the gradients, regularise (L2, or L1 with `l1`), and apply the rule of solver type `rule` to all
        parameters of the `table`.

        `CudaEngine.set_step` has set the rate, which includes Adam's bias correction, and the factor of the gradients.
        Also finds gradients beyond float16 and adapts the scale of the loss, if there is one.
        """
        if self.loss_scale:
            self.loss_scale.check(diff)
        self.kernels.launch(
            "update",
            "update",
            (RULES[rule],),
            len(table[0]),
            THREADS,
            data,
            diff,
            history[0],
            history[-1],
            *table,
            self.step,
            self.loss_scale.inverse if self.loss_scale else NULL,
            self.overflow,
            np.int32(l1),
            *(np.float32(number) for number in settings),
        )
        if self.loss_scale:
            self.loss_scale.adjust()
