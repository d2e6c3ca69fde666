"""What a check of all layer types knows about one configuration."""

from dataclasses import dataclass, field


@dataclass
class Example:
    """A layer's own parameters as prototxt, the shapes of its bottoms, and what can be asked of it."""

    text: str = ""
    bottoms: tuple[tuple[int, ...], ...] = ()
    tops: int = 1
    labels: dict[int, int] = field(default_factory=dict)  # bottom that holds class numbers -> how many classes
    values: dict[int, list[float]] = field(default_factory=dict)  # bottom -> what it holds, repeated to its size
    constants: tuple[int, ...] = ()  # bottoms on whose values no gradient depends: it is zero
    positive: bool = False  # its bottoms must be above 0
    in_place: bool = False
    has_gradient: bool = True
    smooth: bool = True  # its gradient is that of small steps
    batched: tuple[int, ...] | None = None  # bottoms whose first axis may change from pass to pass (None: all)
    empty_batch: bool = True  # works on a batch of no samples
    phase: str = "TRAIN"
