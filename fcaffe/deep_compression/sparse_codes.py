"""Arrays of few different numbers, of which many are 0: where the others are, and which of a code book each is.

S. Han, H. Mao, W. Dally, "Deep Compression", 2016, sections 2, 3 and 5: the places are zeros between one number and the
next, the numbers are indices into a code book, and both have Huffman codes. Where more zeros follow one another than an
index can tell, the paper puts in a number that is 0; here an index of its own stands for so many zeros and no number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcaffe.deep_compression.huffman import MOST_SYMBOLS, PackedSymbols, pack, unpack
from fcaffe.errors import SnapshotError

ZEROS = 255  # the index that stands for so many zeros and no number; a smaller one for zeros, and a number
_SAMPLE = 1 << 16  # numbers by which an array of too many different ones is seen soon

_AS_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Coded(NamedTuple):
    """An array; its size and type stand elsewhere."""

    book: np.ndarray  # the numbers that occur, but for 0
    gaps: PackedSymbols  # zeros before each number
    codes: PackedSymbols  # of each number: its index in the book


def encode(values: np.ndarray) -> Coded | None:
    """Floats along one axis, bit for bit; None if they are of more than MOST_SYMBOLS kinds."""
    bits = np.ascontiguousarray(values).view(_AS_BITS[values.dtype.itemsize])  # -0 and NaN are numbers like others
    if len(np.unique(bits[:_SAMPLE])) > MOST_SYMBOLS + 1:
        return None
    places = np.flatnonzero(bits)
    book, codes = np.unique(bits[places], return_inverse=True)
    if len(book) > MOST_SYMBOLS:
        return None
    zeros = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(zeros // ZEROS + 1)
    gaps = np.full(ends[-1] if len(ends) else 0, ZEROS)
    gaps[ends - 1] = zeros % ZEROS
    return Coded(book.view(values.dtype), pack(gaps), pack(codes))


def decode(coded: Coded, size: int) -> np.ndarray:
    """The array, of so many numbers. Raises SnapshotError where that cannot be."""
    gaps, codes = unpack(coded.gaps), unpack(coded.codes)
    is_number = gaps != ZEROS
    places = (np.cumsum(gaps + is_number) - 1)[is_number]
    if len(places) != len(codes) or codes.max(initial=-1) >= len(coded.book) or places.max(initial=-1) >= size:
        raise SnapshotError("numbers lie outside their array or their code book; the file is damaged")
    values = np.zeros(size, coded.book.dtype)
    values[places] = coded.book[codes]
    return values
