"""Gradients above a threshold."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.errors import SolverError, UsageError
from fcaffe.parallel.compression.compression import Compression


class Threshold(Compression):
    """Where a gradient with its residual exceeds `tau` in size, +tau or -tau is sent, as a 32-bit word: index and sign.

    sent + residual = gradient + last residual, to one rounding of the larger of these two. Strom 2015. `tau` is in the
    units of a worker's own gradients, whose sum over the workers is the gradient of the mean loss. Where they stay
    above it their residual grows ever larger: choose it well above most. Bytes sent for k words: (p - 1) (4 + 4 k).

    Raises SolverError at a gradient that is not finite, which such words cannot tell the others.
    """

    name = "threshold"

    def __init__(self, comm: MPI.Intracomm, *, tau: float = 0.01) -> None:
        if not 1e-30 <= tau <= 1e30:
            raise UsageError(f"threshold: tau is a size of gradients, from 1e-30 to 1e30, not {tau:g}")
        super().__init__(comm)
        self.tau = np.float32(tau)

    def add_up(self, buffer: np.ndarray) -> None:
        residual = self.residual[self.slice_of(buffer)]
        residual += buffer
        if not np.isfinite(residual).all():
            raise SolverError(f"{self.name}: a gradient of worker {self.rank} is not finite; lower base_lr")
        index = np.flatnonzero(np.abs(residual) > self.tau)
        words = (index << 1 | (residual[index] < 0)).astype(np.uint32)
        self._add(words, residual, -self.tau)
        buffer[...] = 0
        for given in self._gather_all(words):
            self._add(given, buffer, self.tau)

    def _gather_all(self, words: np.ndarray) -> list[np.ndarray]:
        """Everyone's words, of which each rank gives as many as it has."""
        counts = self.gather(np.array([words.size], np.uint32)).reshape(-1)
        everyones = [np.empty(count, words.dtype) for count in counts]
        self.exchange([words] * self.ranks, everyones)
        return everyones

    def _add(self, words: np.ndarray, array: np.ndarray, tau: np.float32) -> None:
        """Decode: add tau, or take it off, at the words' indices, which all differ."""
        array[words >> 1] += np.where(words & 1, -tau, tau)
