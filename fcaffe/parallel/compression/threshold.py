"""Gradients above a threshold."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel.compression.compression import Compression, not_finite

PLUS, MINUS, NAN = range(3)  # the low two bits of a word; the others are an index
MOST = 1 << 30  # gradients of a slice, whose indices 30 bits hold


class Threshold(Compression):
    """Where a gradient with its residual exceeds `tau` in size, +tau or -tau is sent, as a 32-bit word: index and sign.

    sent + residual = gradient + last residual, to one rounding of the larger of these two. Strom 2015. `tau` is in the
    units of a worker's own gradients, whose sum over the workers is the gradient of the mean loss. The residual of
    gradients that stay above it grows without limit: choose it well above most. Values that are not finite are sent as
    NaN. Bytes sent for k words: (p - 1) (4 + 4 k).
    """

    name = "threshold"

    def __init__(self, comm: MPI.Intracomm, *, tau: float = 0.01) -> None:
        if not 1e-30 <= tau <= 1e30:
            raise UsageError(f"threshold: tau is a size of gradients, from 1e-30 to 1e30, not {tau:g}")
        super().__init__(comm)
        self.tau = np.float32(tau)
        self._values = np.array([tau, -tau, np.nan], np.float32)  # by PLUS, MINUS, NAN

    def add_up(self, buffer: np.ndarray) -> None:
        if buffer.size > MOST:
            raise UsageError(f"threshold: {buffer.size} gradients in one sum, of at most {MOST}; lower --bucket-mb")
        residual = self.residual[self.slice_of(buffer)]
        residual += buffer
        bad = not_finite(residual)
        residual[bad] = 0
        index = np.flatnonzero(np.abs(residual) > self.tau)
        kinds = np.where(residual[index] < 0, MINUS, PLUS)
        residual[index] -= self._values[kinds]
        words = np.concatenate([index << 2 | kinds, bad << 2 | NAN]).astype(np.uint32)
        buffer[...] = 0
        for received in self._gather_all(words):
            buffer[received >> 2] += self._values[received & 3]  # the indices of one rank all differ

    def _gather_all(self, words: np.ndarray) -> list[np.ndarray]:
        """The words of all ranks, whose numbers may differ."""
        counts = self.gather(np.array([words.size], np.uint32)).reshape(-1)
        everyones = [np.empty(count, words.dtype) for count in counts]
        self.exchange([words] * self.ranks, everyones)
        return everyones
