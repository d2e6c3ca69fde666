"""1-bit SGD."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.parallel.compression.compression import Compression, not_finite


class OneBit(Compression):
    """One bit of each gradient, its sign, and for each `chunk` of them the means of those above and below, as float32.

    sent + residual = gradient + last residual, to one rounding of the larger of these two. Seide et al. 2014, who take
    the columns of weight matrices for chunks. Bytes sent for n gradients in c chunks: (p - 1) (ceil(n / 8) + 8 c).

    In a chunk with a value that is not finite the bits tell which values these are, and they arrive as NaN. Its finite
    values are not sent: all of them remain in the residual.
    """

    name = "onebit"

    def __init__(self, comm: MPI.Intracomm, *, chunk: int = 512) -> None:
        if chunk < 1:
            raise UsageError(f"onebit: chunk is a number of gradients, 1 or more, not {chunk}")
        super().__init__(comm)
        self.chunk = chunk

    def add_up(self, buffer: np.ndarray) -> None:
        residual = self.residual[self.slice_of(buffer)]
        residual += buffer
        bad = not_finite(residual)
        words = self._encode(residual, bad)
        residual -= self._decode(words, buffer.size)
        residual[bad] = 0
        buffer[...] = 0
        for received in self.gather(words):
            buffer += self._decode(received, buffer.size)

    def _encode(self, values: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """The chunks' means, then the bits, as bytes."""
        starts = np.arange(0, values.size, self.chunk)
        above = values >= 0
        count_above = np.add.reduceat(above, starts, dtype=np.int64)
        count_below = np.diff(starts, append=values.size) - count_above
        means = np.empty((2, starts.size), np.float32)
        means[0] = np.add.reduceat(np.maximum(values, 0), starts) / np.maximum(count_above, 1)
        means[1] = np.add.reduceat(np.minimum(values, 0), starts) / np.maximum(count_below, 1)
        for chunk in np.unique(bad // self.chunk):
            means[:, chunk] = np.nan, 0
            above[chunk * self.chunk : (chunk + 1) * self.chunk] = False
        above[bad] = True
        return np.concatenate([means.reshape(-1).view(np.uint8), np.packbits(above)])

    def _decode(self, words: np.ndarray, count: int) -> np.ndarray:
        chunks = -(-count // self.chunk)
        mean_above, mean_below = words[: 8 * chunks].view(np.float32).reshape(2, chunks, 1)
        above = np.unpackbits(words[8 * chunks :], count=chunks * self.chunk).reshape(chunks, self.chunk)
        return np.where(above.view(np.bool_), mean_above, mean_below).reshape(-1)[:count]
