"""Gradients in 16 bits, summed in 32."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from fcaffe.parallel.compression.compression import Compression, not_finite
from fcaffe.parallel.reductions.reduction import cut, part_of


class SixteenBit(Compression):
    """All-reduce of 16-bit words: each rank owns a piece, adds everyone's words for it in float32, and sends the sum.

    sent + residual = gradient + last residual, exactly. The sum of a piece has to be rounded to 16 bits too. Its owner
    adds the rounding error to its residual, and so sends it with the next gradients. What exceeds the `largest` number
    of the format is sent as that number; the residual then holds the rest, rounded to float32. Values that are not
    finite are sent as NaN.

    Bytes sent for n gradients, m of them in the own piece: 2 (n - m) + 2 (p - 1) m, half of what a ring sends.
    """

    largest: ClassVar[float]
    nan_word: ClassVar[int]

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self._reused: dict[str, np.ndarray] = {}

    def encode(self, values: np.ndarray, words: np.ndarray) -> None:
        """Write float32 numbers as 16-bit words (uint16), to nearest, ties to even. NaN may become any word."""
        raise NotImplementedError

    def decode(self, words: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Write the float32 values of words, exactly; returns them."""
        raise NotImplementedError

    def add_up(self, buffer: np.ndarray) -> None:
        whole = self.slice_of(buffer)
        own = part_of(whole, self.rank, self.ranks)
        residual = self.residual[whole]
        residual += buffer
        words = self.reused("words", buffer.size, np.uint16)
        self._send(residual, words, buffer)

        pieces, summand = cut(words, self.ranks), cut(buffer, self.ranks)[self.rank]
        total, total_words = self.reused("total", summand.size, np.float32), pieces[self.rank]
        total[...] = 0
        received = self.reused("received", self.ranks * total.size, np.uint16).reshape(self.ranks, total.size)
        self.exchange(pieces, list(received))
        for row in received:
            total += self.decode(row, summand)
        self._send(total, total_words, summand)
        self.residual[own] += total
        self.exchange([total_words] * self.ranks, pieces)
        self.decode(words, buffer)

    def _send(self, values: np.ndarray, words: np.ndarray, scratch: np.ndarray) -> None:
        """Encode `values` as `words`, and leave in `values` what the words lack."""
        self.encode(values, words)
        values -= self.decode(words, scratch)
        bad = not_finite(values)
        words[bad], values[bad] = self.nan_word, 0

    def reused(self, use: str, count: int, kind: Any) -> np.ndarray:
        """Memory that all calls reuse, since new pages take longer than the rounding of their values."""
        if use not in self._reused or self._reused[use].size < count:
            self._reused[use] = np.empty(count, kind)
        return self._reused[use][:count]


class Fp16(SixteenBit):
    """IEEE half precision: 11 significant bits, up to 65504; what is below 6e-8 waits in the residual to grow."""

    name = "fp16"
    largest = 65504.0
    nan_word = 0x7E00

    smallest_normal = np.float32(2**-14)
    in_steps = np.float32(0.75)  # sums with it are rounded to multiples of 2**-24, as halves below 2**-14 are
    decoded = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

    def encode(self, values: np.ndarray, words: np.ndarray) -> None:
        size = self.reused("sizes", values.size, np.float32)
        small = np.less(np.abs(values, out=size), self.smallest_normal, out=self.reused("small", values.size, np.bool_))
        inside = np.clip(values, -self.largest, self.largest, out=size)
        np.add(inside, self.in_steps, out=inside, where=small)  # NumPy takes 30 times as long to round these itself
        np.subtract(inside, self.in_steps, out=inside, where=small)
        words.view(np.float16)[...] = inside

    def decode(self, words: np.ndarray, values: np.ndarray) -> np.ndarray:
        return self.decoded.take(words, out=values, mode="clip")  # no word is out of range: else NumPy would copy


class Bf16(SixteenBit):
    """The upper half of a float32: 8 significant bits and nearly the whole range."""

    name = "bf16"
    largest = 3.3895313892515355e38
    nan_word = 0x7FC0

    def encode(self, values: np.ndarray, words: np.ndarray) -> None:
        inside = self.reused("inside", values.size, np.float32)
        bits = np.clip(values, -self.largest, self.largest, out=inside).view(np.uint32)
        up = np.right_shift(bits, np.uint32(16), out=self.reused("up", values.size, np.uint32))
        up &= np.uint32(1)
        up += np.uint32(0x7FFF)
        bits += up
        bits >>= np.uint32(16)
        words[...] = bits

    def decode(self, words: np.ndarray, values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint32)
        bits[...] = words
        bits <<= np.uint32(16)
        return values
