"""Traits: what a net has to know of a layer beside its methods, to check it, to share memory, to run it on a device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fcaffe.net.state import Held

Count = int | tuple[int, int | None]


class Half(Enum):
    """What a layer makes of activations of 16 bits, where the engine's factors have 16 bits."""

    NONE = "its bottoms and tops are all float32"
    FIRST = "its first bottom may have 16 bits"
    SAME = "its bottoms and tops have one type, whichever"
    SAME_IN_XP = "as SAME, if the array module computes with 16 bits: not all that the layer does is operators"
    ANY = "each bottom and top may have either type"


@dataclass(frozen=True)
class Traits:
    """What the net has to know of a layer beside its methods. A class states them; `setup` may replace them by others,
    by what the prototxt says."""

    bottoms: Count = (0, None)  # how many it takes: a number, or a range whose end may be open
    tops: Count = (0, None)
    same_number: bool = False  # as many tops as bottoms
    auto_tops: bool = False  # tops that the prototxt leaves out are made up
    half: Half = Half.NONE
    reshapes_by_shape: bool = False  # `reshape` has nothing to do unless shapes have changed
    repeatable: bool = False  # `forward_again` writes what `forward` has written, to the bit
    reads_before_writing: bool = False  # `backward` has read its bottom's data when it begins to write its gradient
    by_operators: bool = False  # passes of training call operators of the engine on blobs, and do nothing else
    by_sample: bool = False  # `forward` makes each sample of the tops of the same ones of the bottoms, and of shapes
    reads_host: bool = False  # brings data from the host, so it comes before all that a device does by itself
    needs_host: bool = False  # waits for what has been computed, so the work of a pass cannot be recorded
    held: Held = Held.OWN  # how several workers that train hold the state
