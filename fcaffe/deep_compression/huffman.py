"""Huffman codes in streams of equal length, which NumPy decodes all at once.

D. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952; no code is longer than LONGEST bits, by
L. Larmore and D. Hirschberg, "A Fast Algorithm for Optimal Length-Limited Huffman Codes", 1990. Codes are canonical:
those of one length count up with the symbols, and the shorter ones come first, so the lengths tell the codes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fcaffe.errors import SnapshotError

LONGEST = 16  # bits of a code
STREAM = 512  # symbols in each stream but the last
MOST_SYMBOLS = 1 << 12  # different ones


class PackedSymbols(NamedTuple):
    """Huffman-coded symbols. The first bit of a byte is its highest."""

    size: int  # symbols
    lengths: np.ndarray  # uint8: bits of each symbol's code; 0 if it is absent, or the only one
    stream_bits: np.ndarray  # uint16: of each stream; they follow one another without gaps
    content: np.ndarray  # uint8


def streams_of(size: int) -> int:
    """The number of streams for `size` symbols."""
    return -(-size // STREAM)


def pack(symbols: np.ndarray) -> PackedSymbols:
    """Code a one-dimensional array of integers from 0 to MOST_SYMBOLS - 1."""
    lengths = code_lengths(np.bincount(symbols))
    codes, _ = _canonical(lengths)
    bits = lengths[symbols].astype(np.int64)
    stops = np.cumsum(bits)
    starts = stops - bits
    size = int(stops[-1]) if len(stops) else 0
    content = np.zeros(-(-size // 8) + 3)
    window = codes[symbols] << (24 - bits - (starts & 7))  # a code lies in three bytes at most
    for byte_index in range(3):
        byte = (window >> (16 - 8 * byte_index)) & 255
        content += np.bincount((starts >> 3) + byte_index, byte, len(content))
    ends = np.append(stops[STREAM - 1 :: STREAM], size)[: streams_of(len(symbols))]
    return PackedSymbols(
        len(symbols),
        lengths,
        np.diff(ends, prepend=0).astype(np.uint16),
        content[: -(-size // 8)].astype(np.uint8),
    )


def unpack(packed: PackedSymbols) -> np.ndarray:
    """Decode the symbols, as int64. Raises SnapshotError if the bits are not valid codes."""
    count, lengths, longest = packed.size, packed.lengths, int(packed.lengths.max(initial=0))
    kraft = int((1 << (LONGEST - lengths[lengths > 0].astype(np.int64))).sum()) if longest <= LONGEST else 0
    if count and not (kraft == 1 << LONGEST or (longest == 0 and len(lengths))):
        raise SnapshotError("a Huffman code is not whole; the file is damaged")
    stops = np.cumsum(packed.stream_bits, dtype=np.int64)
    if longest == 0 or not count:  # one symbol takes no bits
        return np.full(count, len(lengths) - 1, np.int64)
    _, order = _canonical(lengths)
    own = lengths[order].astype(np.int64)
    rows = 1 << (longest - own)
    symbols, bits = np.repeat(order, rows), np.repeat(own, rows)
    # Windows of four bytes at every byte: what a code of up to 16 bits can touch.
    padded = np.concatenate([packed.content, np.zeros(4, np.uint8)]).astype(np.uint32)
    windows = padded[:-3] << 24 | padded[1:-2] << 16 | padded[2:-1] << 8 | padded[3:]
    at = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    streams, last = len(at), count - STREAM * (len(at) - 1)
    found = np.zeros((min(count, STREAM), streams), np.int64)
    mask = (1 << longest) - 1
    for step in range(len(found)):
        here = at if step < last else at[:-1]
        window = windows.take(here >> 3, mode="clip").astype(np.int64)
        index = (window >> (32 - longest - (here & 7))) & mask
        found[step, : len(here)] = symbols.take(index)
        here += bits.take(index)
    if not np.array_equal(at, stops):
        raise SnapshotError("a stream of Huffman codes does not end where it should; the file is damaged")
    return np.concatenate([np.ascontiguousarray(found[:, :-1].T).reshape(-1), found[:last, -1]])


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """The optimal lengths of codes, uint8, for symbols with these counts (package-merge algorithm).

    Each level stands for one bit. It is the list of symbols by count, merged with pairs of the level before. The first
    2 (n - 1) items of the last level are chosen, and the levels before follow from their pairs.
    """
    lengths = np.zeros(len(counts), np.uint8)
    present = np.flatnonzero(counts)
    if len(present) < 2:
        return lengths[: present[0] + 1] if len(present) else lengths
    by_count = present[np.argsort(counts[present], kind="stable")]
    leaves = counts[by_count].astype(np.int64)
    weights, is_leaf = leaves, [np.ones(len(leaves), bool)]
    for _ in range(LONGEST - 1):
        pairs = weights[: len(weights) // 2 * 2].reshape(-1, 2).sum(1)
        merged = np.concatenate([leaves, pairs])
        order = np.argsort(merged, kind="stable")
        weights = merged[order]
        is_leaf.append(order < len(leaves))
    taken = 2 * (len(leaves) - 1)
    for level in reversed(is_leaf):
        of_symbols = int(level[:taken].sum())
        lengths[by_count[:of_symbols]] += 1
        taken = 2 * (taken - of_symbols)
    return lengths


def _canonical(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The code of each symbol, int64, and the symbols that have one in the order of their codes."""
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    own = lengths[order].astype(np.int64)
    shares = 1 << (LONGEST - own)
    codes = np.zeros(len(lengths), np.int64)
    codes[order] = (np.cumsum(shares) - shares) >> (LONGEST - own)
    return codes, order
