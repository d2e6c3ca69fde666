"""Gradients in 16 bits, summed in 32."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from mpi4py import MPI

from fcaffe.net.state import State
from fcaffe.parallel.compression.compression import Compression
from fcaffe.parallel.reductions.reduction import cut, part_of


class SixteenBit(Compression):
    """All-reduce of 16-bit words: each rank owns a piece, adds everyone's words for it in float32, and sends it round.

    sent + residual = gradient + last residual, exactly. The sum of a piece has to be rounded to 16 bits too; its owner
    keeps the error of that and adds it to the next sum, so that this is exact in the same way. What exceeds the
    `largest` number of the format is sent as that number; the residual then keeps the rest, rounded to float32.

    Bytes sent for n gradients, m of them in the own piece: 2 (n - m) + 2 (p - 1) m, half of what a ring sends.
    """

    largest: ClassVar[float]

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.owed: dict[int, np.ndarray] = {}  # what the sums of the own pieces lack, by the start of their slices
        self._own_pieces: dict[int, slice] = {}  # where these lie
        self._restored: np.ndarray | None = None  # what a snapshot says of slices that have not come again yet

    def allocate(self, count: int) -> np.ndarray:
        self._forget()
        return super().allocate(count)

    def state(self) -> State:
        owed = np.zeros_like(self.residual) if self._restored is None else self._restored.copy()
        for start, slice_ in self._own_pieces.items():
            owed[slice_] = self.owed[start]
        return {**super().state(), "owed": owed}

    def restore_state(self, state: State) -> None:
        super().restore_state(state)
        self._forget()
        self._restored = np.array(state["owed"])

    def encode(self, values: np.ndarray) -> np.ndarray:
        """float32 as 16-bit words (uint16), to nearest, ties to even."""
        raise NotImplementedError

    def decode(self, words: np.ndarray) -> np.ndarray:
        """The float32 values of words, exactly."""
        raise NotImplementedError

    def add_up(self, buffer: np.ndarray) -> None:
        slice_ = self.slice_of(buffer)
        if slice_.start not in self.owed:
            self._begin(slice_)
        residual = self.residual[slice_]
        residual += buffer
        words = self.encode(residual)
        residual -= self.decode(words)

        pieces = cut(words, self.ranks)
        own = pieces[self.rank].size
        given = np.empty((self.ranks, own), words.dtype)
        self.exchange(pieces, list(given))
        total = self.owed[slice_.start]
        for piece in given:
            total += self.decode(piece)
        rounded = self.encode(total)
        total -= self.decode(rounded)
        self.exchange([rounded] * self.ranks, pieces)
        buffer[...] = self.decode(words)

    def _forget(self) -> None:
        self.owed.clear()
        self._own_pieces.clear()
        self._restored = None

    def _begin(self, slice_: slice) -> None:
        """At the first sum of a slice: take over what a snapshot says is owed for the own piece. What it says of the
        other pieces, as there were other workers or slices, this rank sends to their owners with its residual."""
        own = self._own_pieces[slice_.start] = part_of(slice_, self.rank, self.ranks)
        owed = self.owed[slice_.start] = np.zeros(own.stop - own.start, np.float32)
        if self._restored is None:
            return
        owed[...] = self._restored[own]
        self._restored[own] = 0
        if self._restored[slice_].any():
            self.residual[slice_] += self._restored[slice_]
            self._restored[slice_] = 0


class Fp16(SixteenBit):
    """IEEE half precision: 11 significant bits, up to 65504; what is below 6e-8 waits in the residual to grow."""

    name = "fp16"
    largest = 65504.0

    smallest_normal = np.float32(2**-14)
    in_steps = np.float32(0.75)  # sums with it are rounded to multiples of 2**-24, as halves below 2**-14 are
    decoded = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

    def encode(self, values: np.ndarray) -> np.ndarray:
        values = np.clip(values, -self.largest, self.largest)
        small = np.abs(values) < self.smallest_normal
        np.add(values, self.in_steps, out=values, where=small)  # NumPy takes 30 times as long to round these itself
        np.subtract(values, self.in_steps, out=values, where=small)
        return values.astype(np.float16).view(np.uint16)

    def decode(self, words: np.ndarray) -> np.ndarray:
        return self.decoded[words]


class Bf16(SixteenBit):
    """The upper half of a float32: 8 significant bits and nearly the whole range."""

    name = "bf16"
    largest = 3.3895313892515355e38

    def encode(self, values: np.ndarray) -> np.ndarray:
        bits = np.clip(values, -self.largest, self.largest).view(np.uint32)
        odd = bits >> np.uint32(16) & np.uint32(1)
        words = (bits + odd + np.uint32(0x7FFF) >> np.uint32(16)).astype(np.uint16)
        words[np.isnan(values)] = 0x7FC0  # rounding could make a number of it
        return words

    def decode(self, words: np.ndarray) -> np.ndarray:
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
