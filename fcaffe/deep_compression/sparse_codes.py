"""Codes sparse arrays of few different numbers as gaps between non-zeros and indices into a code book.

S. Han, H. Mao, W. Dally, "Deep Compression", 2016, sections 2, 3 and 5. A gap is the number of zeros before a number.
Gaps and indices have Huffman codes. For a run of zeros that a gap cannot hold, the paper inserts a number that is 0.
Here a special gap stands for ZEROS zeros without a number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcaffe.deep_compression.huffman import MOST_SYMBOLS, PackedSymbols, pack, unpack
from fcaffe.errors import SnapshotError

ZEROS = 255  # the index that stands for so many zeros and no number; a smaller one for zeros, and a number
_SAMPLE = 1 << 16  # numbers; detects arrays of too many different ones early

_AS_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class Coded(NamedTuple):
    """A coded array, without its shape and type."""

    book: np.ndarray  # the numbers that occur, but for 0
    gaps: PackedSymbols  # zeros before each number
    codes: PackedSymbols  # of each number: its index in the book


def encode(values: np.ndarray) -> Coded | None:
    """Code a one-dimensional float array losslessly. None if it has more than MOST_SYMBOLS different numbers."""
    bits = np.ascontiguousarray(values).view(_AS_BITS[values.dtype.itemsize])  # so -0 and NaN are coded as well
    if len(np.unique(bits[:_SAMPLE])) > MOST_SYMBOLS + 1:
        return None
    indices = np.flatnonzero(bits)
    book, codes = np.unique(bits[indices], return_inverse=True)
    if len(book) > MOST_SYMBOLS:
        return None
    zeros = np.diff(indices, prepend=-1) - 1
    ends = np.cumsum(zeros // ZEROS + 1)
    gaps = np.full(ends[-1] if len(ends) else 0, ZEROS)
    gaps[ends - 1] = zeros % ZEROS
    return Coded(book.view(values.dtype), pack(gaps), pack(codes))


def decode(coded: Coded, size: int) -> np.ndarray:
    """Decode an array of `size` numbers. Raises SnapshotError if the codes do not fit."""
    gaps, codes = unpack(coded.gaps), unpack(coded.codes)
    is_number = gaps != ZEROS
    indices = (np.cumsum(gaps + is_number) - 1)[is_number]
    if len(indices) != len(codes) or codes.max(initial=-1) >= len(coded.book) or indices.max(initial=-1) >= size:
        raise SnapshotError("numbers lie outside their array or their code book; the file is damaged")
    values = np.zeros(size, coded.book.dtype)
    values[indices] = coded.book[codes]
    return values
