"""One stretch of memory for many arrays of a net, of which only some are in use at a time."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fcaffe.engines.memory import aligned_zeros
from fcaffe.net.blob import Array, Blob, Storage
from fcaffe.net.recompute import choose, hand_over_backwards
from fcaffe.net.schedule import Again, Schedule, Spans, fullest

if TYPE_CHECKING:
    from fcaffe.net.net import Net

STEP = 256  # bytes; arrays in the stretch begin at its multiples, which suits vector units of CPUs and GPUs

ATTEMPTS = 8  # at a better order
START = -1  # when all storages have to be back

State = tuple[bool, tuple[int, ...]]
Moves = dict[int, list[tuple[Storage, Array]]]  # before the backward of a node, or at the START of forward or backward


@dataclass
class Use:
    """A storage, and the steps of the pass in which its values are wanted: first and last of each stretch."""

    storage: Storage
    spans: Spans
    before: int | None = None  # the node before whose backward these values are made again, and may lie elsewhere

    def meets(self, other: Use) -> bool:
        """Whether the two are wanted at one time."""
        return any(a <= d and c <= b for a, b in self.spans for c, d in other.spans)


@dataclass
class Memory:
    """Bytes that a net takes for one pass.

    `activations`, `gradients` and `internal` (what layers keep for backward) are what they would take side by side,
    `peak` is what they take; `recomputed` is how much of the activations is computed again.
    """

    parameters: int
    activations: int
    gradients: int
    internal: int
    peak: int
    recomputed: int = 0


class MemoryPlan:
    """Places of the arrays of a net that runs whole passes only, from the forward of its first layer to the backward of
    the same; with `recompute`, of such a pass in which forwards run again. Made anew when a shape changes, or when
    layers begin or cease to be fused.

    `again` says what to run again: before the backward of a node, the forward of these.
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        self.again: Again = {}
        self.version = 0  # another whenever places were given anew
        if net.context.recompute:
            hand_over_backwards(net)
        self._moves: Moves = {}
        self._placed: dict[int, Storage] = {}  # by their ids
        self._followed: State | None = None  # when places were chosen
        self._chosen: tuple[State, Again] | None = None  # and when it was chosen what to run again

    def follow(self) -> None:
        """Give all storages their places, if they have not got them for the present shapes."""
        state = self._state()
        if state == self._followed:
            return
        self._followed = state
        self.version += 1
        for node in self.net.nodes:
            node.layer.rewind()
        for storage in self._placed.values():
            storage.replace(None)
        schedule = Schedule(self.net)
        self.again = self._choose(schedule) if self.net.context.recompute else {}
        uses = _uses(schedule, self.again)
        self._moves = place(uses)
        self._placed = {id(use.storage): use.storage for use in uses}

    def move(self, when: int) -> None:
        """Give storages whose values are about to be made again, before the backward of a node, their places for that;
        at the START of forward and of backward those that they had at first."""
        for storage, buffer in self._moves.get(when, ()):
            if storage.buffer is not buffer:
                storage.replace(buffer)

    def has_placed(self, blob: Blob) -> bool:
        """Whether the data of a blob has its place here, and so may be gone by the end of a pass."""
        return id(blob._data) in self._placed

    def report(self, recompute: bool | None = None) -> Memory:
        """Of the present shapes, with `recompute` or not (None: as it is run); nothing need have run yet."""
        net, whole, active = self.net, self.net.context.whole_passes, self.net.fusions.active
        net.fusions.activate(whole)
        schedule = Schedule(net)
        recompute = net.context.recompute if recompute is None else recompute
        again = self._choose(schedule) if whole and recompute else {}
        parameters = {id(blob._data): blob._data.nbytes for node in net.nodes for blob in node.layer.blobs}
        data = {id(blob._data): blob._data.nbytes for blob in net.blobs if id(blob._data) not in parameters}
        internal, gradients = schedule.bytes_of(schedule.internal), schedule.bytes_of(schedule.gradients)
        activations = sum(data.values())
        peak = activations + gradients + internal
        if whole:
            peak = layout(_uses(schedule, again))[1] + activations - schedule.bytes_of(schedule.activations)
        recomputed = schedule.computed_again(again)
        net.fusions.activate(active)
        return Memory(sum(parameters.values()), activations, gradients, internal, peak, recomputed)

    def _choose(self, schedule: Schedule) -> Again:
        if self.net.context.inference:
            return {}
        state = self._state()
        if self._chosen is None or self._chosen[0] != state:
            self._chosen = state, choose(schedule)
        return self._chosen[1]

    def _state(self) -> State:
        """What a plan depends on."""
        return self.net.fusions.active, tuple(blob.version for blob in self.net.blobs)


def _uses(schedule: Schedule, again: Again) -> list[Use]:
    """One for each time that a storage's values are made, but for storages that change places with others."""
    steps = schedule.steps(again)
    swapping = {key for access in schedule.accesses for key in access.swaps or ()}
    uses = []
    for key, spans in schedule.lifetimes(again).items():
        first, *others = sorted(spans)
        moves = [steps[start].before for start, _ in others]
        if key in swapping or None in moves:
            uses.append(Use(schedule.storages[key], spans))
        else:
            uses += [
                Use(schedule.storages[key], [span], before)
                for span, before in zip((first, *others), (None, *moves), strict=True)
            ]
    return uses


def place(uses: list[Use]) -> Moves:
    """Let the storages share one stretch of memory. Returns who has to move when."""
    starts, end = layout(uses)
    for use in uses:
        use.storage.replace(None)  # before the new stretch is there, the old one may have to go
    if not uses:
        return {}
    arena = aligned_zeros(uses[0].storage.xp, end, "uint8")
    moves: Moves = {}
    for use, start in zip(uses, starts, strict=True):
        buffer = arena[start : start + use.storage.nbytes].view(use.storage.dtype)
        if use.before is None:
            use.storage.replace(buffer)
        else:
            moves.setdefault(use.before, []).append((use.storage, buffer))
    movers = {id(storage): storage for some in moves.values() for storage, _ in some}
    return moves | {START: [(storage, storage.buffer) for storage in movers.values()]}


def layout(uses: list[Use]) -> tuple[list[int], int]:
    """Where each of the storages begins, in bytes, and where all of them end: each where none lies that is in use at
    the same time, as low as it goes. Of several orders, those first that came to lie highest, the best."""
    orders: list[Callable[[int], Any]] = [
        lambda number: (-uses[number].storage.nbytes, uses[number].spans),
        lambda number: (-uses[number].storage.nbytes, -uses[number].spans[-1][1]),
        lambda number: uses[number].storage.nbytes * (uses[number].spans[0][0] - uses[number].spans[-1][1]),
    ]
    best: tuple[list[int], int] | None = None
    least = fullest([(_rounded(use.storage.nbytes), use.spans) for use in uses])[0]
    for key in orders:
        order = sorted(range(len(uses)), key=key)
        for _ in range(ATTEMPTS):
            starts, end = _layout(uses, order)
            if best is None or end < best[1]:
                best = starts, end
            if end == least:
                return best
            highest = [n for n in order if starts[n] + uses[n].storage.nbytes > end - STEP]
            order = highest + [n for n in order if n not in highest]
    assert best
    return best


def _layout(uses: list[Use], order: list[int]) -> tuple[list[int], int]:
    placed: list[tuple[int, int, int]] = []  # start, end, number; by start
    starts = [0] * len(uses)
    for number in order:
        size = _rounded(uses[number].storage.nbytes)
        start = 0
        for other_start, other_end, other in placed:
            if other_end > start and uses[other].meets(uses[number]):
                if other_start - start >= size:
                    break
                start = other_end
        insort(placed, (start, start + size, number))
        starts[number] = start
    return starts, max((end for _, end, _ in placed), default=0)


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP
