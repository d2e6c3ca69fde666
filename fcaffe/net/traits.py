"""Traits: what a net needs to know of a layer besides its methods."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from fcaffe.net.state import Held

Count = int | tuple[int, int | None]
ALL_BOTTOMS = range(sys.maxsize)


class Half(Enum):
    """Which blobs of a layer may have 16 bits, on an engine that multiplies numbers of 16 bits."""

    NONE = "its bottoms and tops are all float32"
    FIRST = "its first bottom may have 16 bits"
    SAME = "its bottoms and tops all have the same type, 16 bits or float32"
    SAME_IN_XP = "as SAME, if the array module computes with 16 bits: not all that the layer does is operators"
    ANY = "each bottom and top may have either type"


@dataclass(frozen=True)
class Traits:
    """What a net needs to know of a layer besides its methods, to check it, share memory, and run it on a device.

    A class states them. `setup` may replace them, depending on the prototxt.
    """

    bottoms: Count = (0, None)  # how many it takes: a number, or a range whose end may be open
    tops: Count = (0, None)
    auto_tops: bool = False  # the net adds tops that the prototxt leaves out
    half: Half = Half.NONE
    reshapes_by_shape: bool = False  # `reshape` does nothing unless a shape has changed
    shapes_by_values: bool = False  # the shapes of its tops, which are small, depend on the values of its bottoms
    repeatable: bool = False  # `forward_again` writes the same bits as `forward`
    labels: Collection[int] = ()  # indices of bottoms whose gradient makes no sense, such as labels and indices
    constants: Collection[int] = ()  # indices of bottoms whose gradient is 0: tops do not depend on their values
    reads: Literal["neither", "bottoms", "tops", "both"] = "both"  # the blobs whose data `backward` reads
    reads_before_writing: bool = False  # `backward` reads the data of its bottom before it writes the gradient
    by_sample: bool = False  # sample i of each top depends only on sample i of the bottoms; no state spans the batch
    keeps_signs: bool = False  # a top is 0 or has the sign of its bottom wherever backward lets a gradient through
    in_place: bool = True  # a top may be one of its bottoms
    aliases: bool = False  # the tops are the memory of the bottom, perhaps with another shape
    runs_user_code: bool = False  # user code reads and writes the blobs in the middle of a pass
    reads_host: bool = False  # brings data from the host, so it runs ahead of the work of a device
    needs_host: bool = False  # waits for computed values, so the work of a pass cannot be recorded
    held: Held = Held.OWN  # how several workers that train hold the state
