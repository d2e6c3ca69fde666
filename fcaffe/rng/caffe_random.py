"""Caffe's random numbers on the CPU, bit for bit: mt19937 and the float32 distributions of Boost 1.74.

Every value is computed from 32-bit draws in a fixed order. Values are computed in blocks, and no draw is made ahead:
after each call the state of the generator is Caffe's.
"""

from __future__ import annotations

import os
from collections.abc import MutableSequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fcaffe.errors import SnapshotError

Floats = npt.NDArray[np.float32]

_BLOCK = 1 << 16  # draws per block, which fit into the cache
_HIGHEST = 2**32 - 1
_KEY_WORDS = 624


class CaffeRandom:
    """A stream of random numbers; each thread of Caffe has one.

    The lowest 32 bits of `seed` are used, as in Caffe. None or a negative seed: one from the operating system.
    """

    def __init__(self, seed: int | None = None):
        if seed is None or seed < 0:
            seed = int.from_bytes(os.urandom(4), "little")
        self._bits = np.random.MT19937()
        seeded: Any = np.random.RandomState(seed & _HIGHEST).get_state(legacy=False)
        self._bits.state = seeded
        self._numpy = np.random.RandomState(self._bits)  # the same generator, with faster arrays of draws

    def draw(self) -> int:
        """The next 32-bit number."""
        return int(self._bits.random_raw())

    def draws(self, n: int) -> npt.NDArray[np.uint32]:
        """The next n 32-bit numbers."""
        return self._numpy.randint(0, 2**32, size=n, dtype=np.uint32)

    def uniform(self, low: float, high: float, n: int) -> Floats:
        """n numbers from [low, high], both ends included: Caffe asks Boost for less than the float32 after `high`."""
        first = np.float32(low)
        end = np.nextafter(np.float32(high), np.float32(np.inf))
        out = np.empty(n, np.float32)
        done = 0
        while done < n:
            values = self.draws(min(n - done, _BLOCK)).astype(np.float32)
            values *= np.float32(2.0**-32)
            values *= end - first
            values += first
            fits = values < end  # rounding can reach the end; Boost draws those again
            if not fits.all():
                values = values[fits]
            out[done : done + len(values)] = values
            done += len(values)
        return out

    def normal(self, mean: float, std: float, n: int) -> Floats:
        """n normal numbers."""
        out = np.empty(n, np.float32)
        done = 0
        while done < n:
            # A value takes at least one draw, so no draw of a block of this size is left.
            values = self._unit_normals(self.draws(min(n - done, _BLOCK)))
            values *= np.float32(std)
            values += np.float32(mean)
            out[done : done + len(values)] = values
            done += len(values)
        return out

    def _unit_normals(self, draws: npt.NDArray[np.uint32]) -> Floats:
        """All normal numbers that begin within these draws. The last one may take further draws.

        Each draw is first treated as the start of a try. Then the slow tries, which need further draws, are processed
        in order. The draws that they take were not starts.
        """
        from fcaffe.rng import ziggurat  # whose exact decimals are slow to load

        widths, limits = _first_glance()
        low_byte = (draws & 255).astype(np.intp)
        values = (draws >> 8).astype(np.float32) * widths[low_byte]
        slow = np.flatnonzero(draws >= limits[low_byte])
        accepted_starts = np.ones(len(draws), bool)
        # A common slow try takes the next draw as height in the wedge. The tail takes more draws, and so does a height
        # that rounds to 1. The height of the last try may be behind the block.
        strips = low_byte[slow] >> 1
        heights = draws[np.minimum(slow + 1, len(draws) - 1)].astype(np.float32) * np.float32(2.0**-32)
        common = (strips > 0) & (heights < 1) & (slow < len(draws) - 1)
        accepted = ziggurat.wedge_accepts(strips, np.abs(values[slow]), heights)
        end = 0  # of the draws that the tries so far have taken

        def after() -> int:
            nonlocal end
            end += 1
            return int(draws[end - 1]) if end <= len(draws) else self.draw()

        for start, is_common, is_accepted in zip(slow.tolist(), common.tolist(), accepted.tolist(), strict=True):
            if start < end:
                continue
            if is_common:
                end = start + 2
                accepted_starts[start] = is_accepted
                accepted_starts[start + 1] = False
            else:
                end = start + 1
                value = ziggurat.normal_try(int(draws[start]), after)
                accepted_starts[start:end] = False
                if value is not None:
                    values[start], accepted_starts[start] = value, True
        return values[accepted_starts]

    def bernoulli(self, p: float, n: int, precision: type[np.floating[Any]] = np.float64) -> npt.NDArray[np.bool_]:
        """n times True with probability p (0 to 1).

        precision: of p and of the comparison; Caffe's Dropout asks in double, its fillers in np.float32.
        """
        if p == 0:
            return np.zeros(n, bool)  # Boost takes no draw then
        limit = precision(p) * precision(_HIGHEST)
        if precision is np.float64:
            return self.draws(n) <= np.uint32(limit)  # the same, without converting each draw
        return self.draws(n).astype(precision) <= limit

    def shuffle(self, sequence: MutableSequence[Any]) -> None:
        """Shuffles a list in place, as Caffe does its lists of images and records."""
        for i in range(len(sequence) - 1, 0, -1):
            size, rest = divmod(_HIGHEST, i + 1)
            size += rest == i
            while (j := self.draw() // size) > i:
                pass
            sequence[i], sequence[j] = sequence[j], sequence[i]

    def state(self) -> bytes:
        """The state: 624 words of the generator and the index of the next one, 2500 bytes, little-endian."""
        words = self._bits.state["state"]
        return np.append(words["key"], words["pos"]).astype("<u4").tobytes()

    def set_state(self, state: bytes) -> None:
        """Restore a state. Raises SnapshotError if the bytes are none."""
        words = np.frombuffer(state, "<u4") if len(state) == 4 * (_KEY_WORDS + 1) else np.array([_HIGHEST])
        if words[-1] > _KEY_WORDS:
            raise SnapshotError(
                f"the saved state of the random generator ({len(state)} bytes) is not one of mt19937 "
                f"({4 * (_KEY_WORDS + 1)} bytes): the file is damaged or of another kind"
            )
        key = words[:-1].astype(np.uint32)
        self._bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": int(words[-1])}}


@cache
def _first_glance() -> tuple[Floats, npt.NDArray[np.uint32]]:
    """For each low byte of a draw: the strip's signed width per unit of the upper bits, and the limit.

    A draw below its limit is accepted without further draws. Boost compares the float32 position with the double width
    of the next strip. The limit is the draw at which the result of that comparison changes.
    """
    from fcaffe.rng import ziggurat

    table = ziggurat.normal_table()
    low_byte = np.arange(256)
    strip = low_byte >> 1
    width = table.x32[strip] * np.float32(2.0**-24)
    nearby = (table.x[strip + 1] / width).astype(np.int64)[:, None] + np.arange(-4, 5)
    accepted = nearby.astype(np.float32) * width[:, None] < table.x[strip + 1][:, None]
    limit = np.maximum(nearby[:, 0] + accepted.sum(axis=1), 0)
    return np.where(low_byte & 1, width, -width), (limit << 8).astype(np.uint32)
