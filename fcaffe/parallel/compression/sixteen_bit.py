"""Gradients in 16 bits, summed in 32."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from fcaffe.errors import UsageError
from fcaffe.net.state import State
from fcaffe.parallel.compression.compression import Compression
from fcaffe.parallel.reductions.reduction import cut, part_of


class SixteenBit(Compression):
    """All-reduce of 16-bit words: each rank owns a piece, adds everyone's words for it in float32, and sends it round.

    sent + residual = gradient + last residual, exactly. The sum of a piece has to be rounded to 16 bits too; its owner
    keeps the error of that and adds it to the next sum, so that this is exact in the same way. What exceeds the
    `largest` number of the format is sent as that number; the residual then keeps the rest, rounded to float32.

    Bytes sent for n gradients, m of them in the own piece: 2 (n - m) + 2 (p - 1) m, half of what a ring sends; and what
    rides along. `first`: of how many MB of the gradients, from the front on, this is wanted (see Front).
    """

    carries = True
    largest: ClassVar[float]

    def __init__(self, comm: MPI.Intracomm, *, first: float = math.inf) -> None:
        if not first > 0:
            raise UsageError(
                f"{self.name}: first is how many MB of gradients, from the first layer's on, go in 16 bits: more than "
                f"0, not {first:g}; with 0.1 it is the bucket in front, which backward finishes last"
            )
        super().__init__(comm)
        self.first = first
        self._spare: dict[str, np.ndarray] = {}
        self._along = np.empty((self.ranks, 0), np.uint16)
        self.owed: dict[int, np.ndarray] = {}  # what the sums of the own pieces lack, by the start of their slices
        self._own_pieces: dict[int, slice] = {}  # where these lie
        self._reach = 0  # where the last of these slices ends
        self._restored: np.ndarray | None = None  # what a snapshot says is owed, until all slices have come again
        self._awaited = 0  # gradients of slices that have not

    def allocate(self, count: int) -> np.ndarray:
        self._forget()
        return super().allocate(count)

    def carry(self, part: np.ndarray) -> None:
        self._along = part.reshape(self.ranks, -1).view(np.uint16)

    def state(self) -> State:
        """As far as anything is kept: what would follow are zeros."""
        owed = np.zeros(self._end_of_kept, np.float32)
        if self._restored is not None:
            owed[: self._restored.size] = self._restored
        for start, own in self._own_pieces.items():
            owed[own] = self.owed[start]
        return {"residual": self.residual[: owed.size], "owed": owed}

    def restore_state(self, state: State) -> None:
        """Of any length: what is longer than what is compressed now waits for the first sums."""
        residual = state["residual"]
        self.residual[: residual.size] = residual
        self.residual[residual.size : self._end_of_kept] = 0
        self._forget()
        self._restored = np.array(state["owed"])
        self._awaited = self.residual.size

    def encode(self, values: np.ndarray, words: np.ndarray) -> None:
        """Write float32 as 16-bit words (uint16), to nearest, ties to even."""
        raise NotImplementedError

    def decode(self, words: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Write the float32 values of words, exactly; returns them."""
        raise NotImplementedError

    def add_up(self, buffer: np.ndarray) -> None:
        slice_ = self.slice_of(buffer)
        if slice_.start not in self.owed:
            self._begin(slice_)
        residual = self.residual[slice_]
        residual += buffer
        words = self._encode_and_keep_rest(residual, self.spare("words", buffer.size, np.uint16), buffer)

        pieces = cut(words, self.ranks)
        mine, summand = (cut(array, self.ranks)[self.rank] for array in (words, buffer))
        along = self._along if slice_.start == 0 else self._along[:, :0]
        width = mine.size + along.shape[1]
        given = self.spare("given", self.ranks * width, np.uint16).reshape(self.ranks, width)
        outgoing = [np.concatenate([piece, along[self.rank]]) for piece in pieces] if along.size else pieces
        self.exchange(outgoing, list(given))
        along[...] = given[:, mine.size :]
        total = self.owed[slice_.start]
        for piece in given[:, : mine.size]:
            total += self.decode(piece, summand)
        self._encode_and_keep_rest(total, mine, summand)
        self.exchange([mine] * self.ranks, pieces)
        self.decode(words, buffer)

    def _encode_and_keep_rest(self, values: np.ndarray, words: np.ndarray, spare: np.ndarray) -> np.ndarray:
        """`values` as words; what these lack is left in `values`."""
        self.encode(values, words)
        values -= self.decode(words, spare)
        return words

    def spare(self, use: str, count: int, kind: Any) -> np.ndarray:
        """Memory that is the same at every call: it takes longer to be given new pages than to round what they hold."""
        if use not in self._spare or self._spare[use].size < count:
            self._spare[use] = np.empty(count, kind)
        return self._spare[use][:count]

    def give_back(self, buffer: np.ndarray) -> None:
        """Add to a slice that is not compressed what a snapshot has of it, which is kept no more.

        Nothing is added where nothing is kept: -0.0 stays what it is.
        """
        if self._restored is None:
            return
        slice_ = self.slice_of(buffer)
        owed = self._restored[slice_]  # may end before the slice
        residual, gradients = self.residual[slice_][: owed.size], buffer[: owed.size]
        kept = residual + owed
        np.add(gradients, kept, out=gradients, where=kept != 0)
        residual[...] = owed[...] = 0
        self._has_come(slice_)

    @property
    def _end_of_kept(self) -> int:
        """Pages of the residual that lie behind it are never touched, and so take no memory."""
        return self._reach if self._restored is None else max(self._reach, self._restored.size)

    def _forget(self) -> None:
        self.owed.clear()
        self._own_pieces.clear()
        self._reach = 0
        self._restored = None

    def _begin(self, slice_: slice) -> None:
        """At the first sum of a slice: take over what a snapshot says is owed for the own piece. What it says of the
        other pieces, as there were other workers or slices, this rank sends to their owners with its residual."""
        own = self._own_pieces[slice_.start] = part_of(slice_, self.rank, self.ranks)
        owed = self.owed[slice_.start] = np.zeros(own.stop - own.start, np.float32)
        self._reach = max(self._reach, slice_.stop)
        if self._restored is None:
            return
        mine, all_ = self._restored[own], self._restored[slice_]  # may end before the slice
        owed[: mine.size] = mine
        mine[...] = 0
        if all_.any():
            self.residual[slice_][: all_.size] += all_
            all_[...] = 0
        self._has_come(slice_)

    def _has_come(self, slice_: slice) -> None:
        """For the first time since `restore_state`: once all have, nothing waits."""
        self._awaited -= slice_.stop - slice_.start
        if self._awaited == 0:
            self._restored = None


class Fp16(SixteenBit):
    """IEEE half precision: 11 significant bits, up to 65504; what is below 6e-8 waits in the residual to grow."""

    name = "fp16"
    largest = 65504.0

    smallest_normal = np.float32(2**-14)
    in_steps = np.float32(0.75)  # sums with it are rounded to multiples of 2**-24, as halves below 2**-14 are
    decoded = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

    def encode(self, values: np.ndarray, words: np.ndarray) -> None:
        size = self.spare("sizes", values.size, np.float32)
        small = np.less(np.abs(values, out=size), self.smallest_normal, out=self.spare("small", values.size, np.bool_))
        inside = np.clip(values, -self.largest, self.largest, out=size)
        np.add(inside, self.in_steps, out=inside, where=small)  # NumPy takes 30 times as long to round these itself
        np.subtract(inside, self.in_steps, out=inside, where=small)
        words.view(np.float16)[...] = inside

    def decode(self, words: np.ndarray, values: np.ndarray) -> np.ndarray:
        return self.decoded.take(words, out=values, mode="clip")  # of which there are none: else NumPy would copy


class Bf16(SixteenBit):
    """The upper half of a float32: 8 significant bits and nearly the whole range."""

    name = "bf16"
    largest = 3.3895313892515355e38

    def encode(self, values: np.ndarray, words: np.ndarray) -> None:
        inside = self.spare("inside", values.size, np.float32)
        bits = np.clip(values, -self.largest, self.largest, out=inside).view(np.uint32)
        up = np.right_shift(bits, np.uint32(16), out=self.spare("up", values.size, np.uint32))
        up &= np.uint32(1)
        up += np.uint32(0x7FFF)
        bits += up
        bits >>= np.uint32(16)
        words[...] = bits
        if values.size and np.isnan(values.max()):
            words[np.isnan(values)] = 0x7FC0  # rounding could make a number of it

    def decode(self, words: np.ndarray, values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint32)
        bits[...] = words
        bits <<= np.uint32(16)
        return values
