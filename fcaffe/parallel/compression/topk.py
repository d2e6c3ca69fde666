"""Deep Gradient Compression."""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.layer import State
from fcaffe.parallel.compression.compression import Compression, not_finite

WORD = np.dtype([("index", np.uint32), ("value", np.float32)])


class TopK(Compression):
    """Each worker sends the largest of its gradients alone, a `density` of each slice, as index and float32.

    Lin et al. 2018. The momentum is applied here, before the choice, to the worker's own gradients g (momentum
    correction): u = momentum * u + g; residual += u; then what is largest in the residual is sent, and both residual
    and u are cleared there (momentum factor masking). clip_gradients is applied to g, as clip / sqrt(p) (local
    clipping), and needs the whole gradient in one slice. Over the first `warmup` iterations the density falls by fours
    to the one given: 75, 93.75, 98.44, 99.61 % are kept back, then 99.9.

    Values that are not finite are sent first; those beyond the density are dropped.

    sent + residual = u + last residual, exactly. Bytes sent for k = ceil(density * n): 8 (p - 1) k.
    """

    name = "topk"
    applies_momentum = True

    def __init__(self, comm: MPI.Intracomm, *, density: float = 0.001, warmup: int = 500) -> None:
        if not 0 < density <= 1:
            raise UsageError(f"topk: density is a part of the gradients, more than 0 and up to 1, not {density:g}")
        if warmup < 0:
            raise UsageError(f"topk: warmup is a number of iterations, 0 or more, not {warmup}")
        super().__init__(comm)
        self.final_density, self.warmup = density, warmup
        self.momentum = np.float32(0)
        self.clip = -1.0
        self.iteration = 0

    def set_momentum(self, momentum: float, clip: float) -> None:
        self.momentum, self.clip = np.float32(momentum), clip

    def allocate(self, count: int) -> np.ndarray:
        self.velocity = np.zeros(count, np.float32)
        self.iteration = 0
        return super().allocate(count)

    def state(self) -> State:
        return {**super().state(), "velocity": self.velocity, "iteration": np.array(self.iteration, np.int64)}

    def restore_state(self, state: State) -> None:
        super().restore_state(state)
        self.velocity[...] = state["velocity"]
        self.iteration = int(state["iteration"])

    @property
    def density(self) -> float:
        """The density in this iteration."""
        stages = math.ceil(-math.log(self.final_density, 4)) - 1  # number of powers of 1/4 above the final density
        if self.iteration >= self.warmup or stages < 1:
            return self.final_density
        return 0.25 ** (1 + self.iteration * stages // self.warmup)

    def add_up(self, buffer: np.ndarray) -> None:
        slice_ = self.slice_of(buffer)
        velocity, residual = self.velocity[slice_], self.residual[slice_]
        self._clip(buffer)
        velocity *= self.momentum
        velocity += buffer
        residual += velocity

        index = self._largest(residual, math.ceil(self.density * buffer.size))
        words = np.empty(index.size, WORD)
        words["index"], words["value"] = index, residual[index]
        residual[index] = 0
        velocity[index] = 0
        dropped = not_finite(residual)
        residual[dropped] = velocity[dropped] = 0
        buffer[...] = 0
        for given in self.gather(words):
            buffer[given["index"]] += given["value"]
        if slice_.start == 0:  # slices come from the end to the front
            self.iteration += 1

    def _largest(self, values: np.ndarray, count: int) -> np.ndarray:
        """The sorted indices of the `count` largest absolute values; NaN counts as the largest."""
        split = values.size - count
        return np.sort(np.argpartition(np.abs(values), split)[split:])

    def _clip(self, gradient: np.ndarray) -> None:
        """Clip to the limit / sqrt(p): the sum of p independent gradients has sqrt(p) times the norm of one."""
        if self.clip < 0:
            return
        limit = self.clip / math.sqrt(self.ranks)
        norm = math.sqrt(float(np.dot(gradient, gradient)))
        if limit < norm < math.inf:
            gradient *= np.float32(limit / norm)
