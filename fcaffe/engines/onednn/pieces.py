"""Pieces of arrays for oneDNN's batch normalisation, which fit a core's cache and sums in float32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fcaffe.engines.channels import channels_last
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.dnnl import F32
from fcaffe.engines.onednn.library import Library, type_of
from fcaffe.engines.onednn.primitives import Layout

WIDTH = 512  # values side by side of a piece, if the channels alone are not as many
PIECE = 1 << 17  # float32 values of a piece for each thread: with one thread it stays in its cache
VECTOR = 16  # float32 values of AVX-512

Array = Any
Made = TypeVar("Made")


class Piece(NamedTuple):
    """A slice of an array: its offset in values, and its shape for oneDNN: `groups` times the channels of the array, of
    `length` values each."""

    start: int
    groups: int
    length: int


def cut_in_pieces(x: Array, threads: int) -> tuple[Piece, ...]:
    return _pieces(x.shape, is_channels_last(x), PIECE * threads * 4 // x.itemsize)


@functools.lru_cache(1024)
def _pieces(shape: tuple[int, ...], last: bool, values: int) -> tuple[Piece, ...]:
    """Pieces of about this many `values`."""
    return tuple(_cut(shape, last, values))


def _cut(shape: tuple[int, ...], last: bool, values: int) -> Iterator[Piece]:
    channels, rest = shape[1], 1
    if last:  # rows of channels
        count = math.prod(shape) // channels
        step = VECTOR // math.gcd(VECTOR, channels)
        together = max(1, WIDTH // channels // step * step)
    else:  # images whose channels are stretches of memory
        count, rest = shape[0], math.prod(shape[1:]) // channels
        together = max(1, values // (channels * rest))
    most = max(1, values // (channels * rest * together)) * together
    start = 0
    while start < count:
        groups = min(together, count - start)
        taken = min(most, (count - start) // groups * groups)
        yield Piece(start * channels * rest, groups, taken // groups * rest)
        start += taken


def alike(pieces: Sequence[Piece], make: Callable[[Piece], Made]) -> list[Made]:
    """make(piece) for each piece, called once per size."""
    made: dict[tuple[int, int], Made] = {}
    for piece in pieces:
        if piece[1:] not in made:
            made[piece[1:]] = make(piece)
    return [made[piece[1:]] for piece in pieces]


def piece_layout(library: Library, x: Array, piece: Piece) -> Layout:
    channels, length = piece.groups * x.shape[1], piece.length
    inner = (1, channels) if is_channels_last(x) else (length, 1)
    return Layout(library, (1, channels, length, 1), type_of(x), (channels * length, *inner, inner[1]))


def side_by_side(x: Array) -> int:
    """How many rows of a channels-last array count as one, since short rows are slow. At least two are left."""
    together = 1
    if is_channels_last(x):
        rows = x.size // x.shape[1]
        while together * x.shape[1] < WIDTH and rows % (2 * together) == 0 and rows > 2 * together:
            together *= 2
    return together


def of_channels(library: Library, channels: int, axes: int) -> Layout:
    """Layout of one number per channel, broadcast over an array of this many axes."""
    ones = (1,) * (axes - 2)
    return Layout(library, (1, channels, *ones), F32, (channels, 1, *ones))


def kind_of(x: Array, piece: Piece) -> tuple[Any, ...]:
    """Key of the operations on a piece."""
    return x.itemsize, is_channels_last(x), x.shape[1], piece.groups, piece.length


class Repeated:
    """Arrays (C,), repeated for each group of a piece's channels."""

    def __init__(self, *numbers: Array) -> None:
        self._numbers = numbers
        self._found: dict[int, tuple[list[Array], list[int]]] = {}

    def addresses(self, piece: Piece) -> list[int]:
        if piece.groups not in self._found:
            arrays = [np.tile(each, piece.groups) for each in self._numbers]
            self._found[piece.groups] = arrays, [address(each) for each in arrays]
        return self._found[piece.groups][1]


def is_channels_last(x: Array) -> bool:
    return bool(channels_last(x).flags.c_contiguous)
