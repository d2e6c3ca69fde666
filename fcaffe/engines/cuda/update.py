"""The solvers' update of all parameters in one kernel, and the scale of the loss, which keeps float16 gradients from
vanishing (Micikevicius et al., 2018)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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


class Update(EngineBase):
    """The plain rules, bit for bit, in one pass over memory, and the scale of the loss.

    Numbers that change from step to step are read on the device. `step` has the rate and the factor of the gradients.
    If `overflow` is not 0, the kernel changes nothing.

    The scale is fixed, or adapted: an update whose gradients are not all finite is skipped, and the scale is halved. It
    is doubled after PATIENCE updates without overflow. The check comes after the sum over the workers, so that all
    decide alike.
    """

    kernels: Kernels
    step: Array  # float32 (2,)
    overflow: Array  # int32 (1,)
    loss_scale: Array | None = None  # float32 (2,): the factor of the losses, and its inverse, of the gradients
    steps: Array  # int32 (2,): updates since the last change of the scale, and skipped ones in all

    updates_at_once = True

    def begin_loss_scale(self, fixed: float | None) -> None:
        scale = FIRST if fixed is None else fixed
        self.loss_scale = self.xp.asarray(np.array([scale, 1 / scale], np.float32))
        self.steps, self.patience = self.xp.zeros(2, np.int32), PATIENCE if fixed is None else 0

    def scale_losses(self, tops: Iterable[tuple[Array, float]]) -> None:
        if self.loss_scale is not None:
            for diff, weight in tops:
                diff[...] = self.loss_scale[0] * np.float32(weight)

    def gradient_scale(self) -> float:
        self.make_current()
        return 1.0 if self.loss_scale is None else float(self.loss_scale[0])

    def state(self) -> dict[str, np.ndarray]:
        """The scale of the loss, if it is adapted."""
        self.make_current()
        if self.loss_scale is None or not self.patience:
            return {}
        return {"scales": self.loss_scale.get(), "steps": self.steps.get()}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """A fixed scale stays; so does any scale if the snapshot has none."""
        self.make_current()
        if self.loss_scale is not None and self.patience and state:
            self.loss_scale[...] = self.xp.asarray(state["scales"].astype(np.float32))
            self.steps[...] = self.xp.asarray(state["steps"].astype(np.int32))

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
        """
        inverse = NULL if self.loss_scale is None else self.loss_scale[1:]
        if self.loss_scale is not None:
            blocks, count = blocks_for(diff.size, per_thread=4), np.int64(diff.size)
            self.kernels.launch("update", "find_overflow", (), blocks, THREADS, diff, count, self.overflow)
        arrays = data, diff, history[0], history[-1], *table, self.step, inverse, self.overflow
        numbers = np.int32(l1), *map(np.float32, settings)
        self.kernels.launch("update", "update", (RULES[rule],), len(table[0]), THREADS, *arrays, *numbers)
        if self.loss_scale is not None:
            self._adjust_scale(self.loss_scale[:1], inverse)

    def _adjust_scale(self, scale: Array, inverse: Array) -> None:
        """After an update: adapt the scale for the next iteration, and clear `overflow`."""
        good, skipped = self.steps[:1], self.steps[1:]
        good += 1
        good *= 1 - self.overflow
        skipped += self.overflow
        if self.patience:
            grows = good == self.patience
            good *= 1 - grows
            factor = (1 + grows) * (1 - 0.5 * self.overflow)
            scale[...] = (scale * factor).clip(SMALLEST, LARGEST)
            inverse[...] = 1 / scale
        self.overflow[...] = 0
