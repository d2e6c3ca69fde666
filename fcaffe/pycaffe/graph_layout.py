"""Where the boxes and lines of a net's picture go, if Graphviz is not there to say so.

As Graphviz does it, after Sugiyama: boxes stand in rows, a line leads from a row to a later one, the order within the
rows keeps crossings few, and lines that pass rows are kept straight. What differs: a layer that works in place stands
beside its blob. Here a net always runs down the page; who draws it may turn it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

ROW_GAP, WIDEST_ROW_GAP, BOX_GAP, LINE_GAP, SIDE_GAP = 38.0, 90.0, 24.0, 14.0, 26.0
SWEEPS = 24  # over the rows, to order them and to place what is in them
BALANCED = 16  # from this sweep on, what is placed heeds what is above and below it

Point = tuple[float, float]


@dataclass
class Box:
    """What is to be placed, of this size; `x` and `y` are its centre."""

    width: float
    height: float
    x: float = 0
    y: float = 0


@dataclass
class Layout:
    """The boxes by name, and each line as the points that it goes straight down from or to, in the edges' order.

    Points come in pairs: the line leaves one point of a pair and reaches the next pair's first in a curve. A line to or
    from what works in place has one pair, side by side.
    """

    boxes: dict[str, Box]
    lines: list[list[Point]]


@dataclass
class _Item:
    """What has a place in a row: a blob or layer with what works on it in place, or a line that passes the row."""

    row: int
    left: float  # how far it reaches from `x`
    right: float
    height: float = 0
    x: float = 0
    above: list[tuple[_Item, float]] = field(default_factory=list, repr=False)  # with the line's weight
    below: list[tuple[_Item, float]] = field(default_factory=list, repr=False)

    @property
    def passes(self) -> bool:
        return self.height == 0


def lay_out(boxes: dict[str, Box], edges: Sequence[tuple[str, str]], room: Sequence[float]) -> Layout:
    """Place the boxes, and lead the edges (source, target) around them, with so much room above where each ends."""
    owners = _in_place(boxes, edges)
    heads = [name for name in boxes if name not in owners]
    sides: dict[str, list[str]] = {head: [name for name, owner in owners.items() if owner == head] for head in heads}
    inner = [(source, target) for source, target in edges if source in sides and target in sides and source != target]
    rows_of = _rows(heads, inner)
    items = {head: _item(boxes[head], [boxes[name] for name in sides[head]], rows_of[head]) for head in heads}
    chains = {edge: _chain(*edge, items, rows_of) for edge in dict.fromkeys(inner)}
    rows = _ordered([*items.values(), *(item for chain in chains.values() for item in chain[1:-1])])
    _place(rows)
    tops: list[float] = []
    bottoms: list[float] = []
    y = 0.0
    least = [ROW_GAP] * len(rows)
    for (source, target), wanted in zip(edges, room, strict=True):
        if source in rows_of and rows_of[source] < rows_of.get(target, 0):
            least[rows_of[target] - 1] = max(least[rows_of[target] - 1], wanted)
    for row, gap in zip(rows, least, strict=True):
        tops.append(y)
        bottoms.append(y + max(item.height for item in row))
        farthest = max((abs(item.x - other.x) for item in row for other, _ in item.below), default=0.0)
        y = bottoms[-1] + max(gap, min(0.08 * farthest, WIDEST_ROW_GAP))  # no line runs all but level
    for head, item in items.items():
        middle = (tops[item.row] + bottoms[item.row]) / 2
        _put(boxes[head], [boxes[name] for name in sides[head]], item.x, middle)
    return Layout(boxes, [_line(edge, boxes, owners, chains, tops, bottoms) for edge in edges])


def _in_place(boxes: dict[str, Box], edges: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The boxes that nothing but one other box leads to and comes from, and that other."""
    near: dict[str, tuple[set[str], set[str]]] = {name: (set(), set()) for name in boxes}
    for source, target in edges:
        near[target][0].add(source)
        near[source][1].add(target)
    owners: dict[str, str] = {}
    for name, (sources, targets) in near.items():
        if sources == targets and len(sources) == 1 and name not in sources:
            (owner,) = sources
            if owner not in owners and name not in owners.values():
                owners[name] = owner
    return owners


def _rows(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The row of each: below all that lead to it, but for edges that close a circle; and close to what it leads to."""
    targets: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        targets[source].append(target)
    order, state = [], dict.fromkeys(names, 0)  # 1: its targets are being visited; 2: they all have been
    forward: dict[str, list[str]] = {name: [] for name in names}
    for start in names:
        path = [start] if not state[start] else []
        while path:
            name = path[-1]
            state[name] = 1
            step = next((target for target in targets[name] if state[target] == 0), None)
            if step is not None:
                path.append(step)
                continue
            path.pop()
            state[name] = 2
            order.append(name)
            forward[name] = [target for target in targets[name] if state[target] == 2]
    rows = dict.fromkeys(names, 0)
    for name in reversed(order):
        for target in forward[name]:
            rows[target] = max(rows[target], rows[name] + 1)
    led_to = {target for name in names for target in forward[name]}
    for name in order:
        if forward[name] and name not in led_to:
            rows[name] = min(rows[target] for target in forward[name]) - 1
    used = {row: number for number, row in enumerate(sorted(set(rows.values())))}
    return {name: used[row] for name, row in rows.items()}


def _item(box: Box, sides: list[Box], row: int) -> _Item:
    half = box.width / 2
    right = half + (SIDE_GAP + max(side.width for side in sides) if sides else 0)
    return _Item(row, half, right, max(box.height, _stacked(sides)))


def _stacked(sides: list[Box]) -> float:
    """The height of boxes one above the other."""
    return sum(side.height for side in sides) + LINE_GAP * (len(sides) - 1)


def _chain(source: str, target: str, items: dict[str, _Item], rows: dict[str, int]) -> list[_Item]:
    """The items that a line goes over, those of the rows that it passes included; downwards, whatever its direction."""
    upper, lower = sorted((items[source], items[target]), key=lambda item: item.row)
    passing = [_Item(row, LINE_GAP / 2, LINE_GAP / 2) for row in range(upper.row + 1, lower.row)]
    chain = [upper, *passing, lower]
    for a, b in itertools.pairwise(chain):
        weight = (1.0, 3.0, 8.0)[a.passes + b.passes]  # straight where it passes rows
        a.below.append((b, weight))
        b.above.append((a, weight))
    return chain


def _ordered(items: list[_Item]) -> list[list[_Item]]:
    """The items row by row, in an order with few crossings."""
    rows: list[list[_Item]] = [[] for _ in range(max((item.row for item in items), default=-1) + 1)]
    seen: set[int] = set()
    for start in items:  # in depth first, so that what hangs together stands together
        path = [start]
        while path:
            item = path.pop()
            if id(item) not in seen:
                seen.add(id(item))
                rows[item.row].append(item)
                path.extend(near for near, _ in reversed(item.below))
    best, fewest = [list(row) for row in rows], _crossings(rows)
    place = {id(item): float(n) for row in rows for n, item in enumerate(row)}
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        for row in rows[1:] if down else rows[-2::-1]:
            means = {}
            for item in row:
                near = [place[id(other)] for other, _ in (item.above if down else item.below)]
                means[id(item)] = sum(near) / len(near) if near else place[id(item)]
            row.sort(key=lambda item: means[id(item)])
            place.update((id(item), float(n)) for n, item in enumerate(row))
        if (count := _crossings(rows)) < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _crossings(rows: list[list[_Item]]) -> int:
    count = 0
    for row, next_row in itertools.pairwise(rows):
        place = {id(item): n for n, item in enumerate(next_row)}
        ends = [[place[id(other)] for other, _ in item.below] for item in row]
        for n, first in enumerate(ends):
            count += sum(b < a for later in ends[n + 1 :] for a in first for b in later)
    return count


def _place(rows: list[list[_Item]]) -> None:
    """Give the items their x: near the mean of those that lines lead to, in the order of the row, without overlap."""
    for row in rows:
        _settle(row, [0.0] * len(row), [1.0] * len(row))
    for sweep in range(SWEEPS + 1):
        down = sweep % 2 == 0  # the last sweep too, which makes chains straight
        for row in rows if down else reversed(rows):
            wanted, weights = [], []
            for item in row:
                near = (
                    (item.above if down else item.below)
                    if sweep < BALANCED or sweep == SWEEPS
                    else item.above + item.below
                )
                weight = sum(w for _, w in near)
                wanted.append(sum(other.x * w for other, w in near) / weight if near else item.x)
                weights.append(weight or 0.1)
            _settle(row, wanted, weights)


def _settle(row: list[_Item], wanted: list[float], weights: list[float]) -> None:
    """Put a row's items as close to where they are wanted as their widths allow: least squares."""
    offsets, offset = [], 0.0
    for before, item in zip([None, *row], row, strict=False):
        if before is not None:
            offset += before.right + item.left + (LINE_GAP if before.passes or item.passes else BOX_GAP)
        offsets.append(offset)
    pools: list[list[float]] = []  # of neighbours that touch: mean, weight, number of items
    for place, weight, offset in zip(wanted, weights, offsets, strict=True):
        pools.append([place - offset, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, more, count = pools.pop()
            total = pools[-1][1] + more
            pools[-1] = [(pools[-1][0] * pools[-1][1] + mean * more) / total, total, pools[-1][2] + count]
    places = [mean for mean, _, count in pools for _ in range(int(count))]
    for item, place, offset in zip(row, places, offsets, strict=True):
        item.x = place + offset


def _put(box: Box, sides: list[Box], x: float, y: float) -> None:
    box.x, box.y = x, y
    top = y - _stacked(sides) / 2
    for side in sides:
        side.x = x + box.width / 2 + SIDE_GAP + side.width / 2
        side.y = top + side.height / 2
        top += side.height + LINE_GAP


def _line(
    edge: tuple[str, str],
    boxes: dict[str, Box],
    owners: dict[str, str],
    chains: dict[tuple[str, str], list[_Item]],
    tops: list[float],
    bottoms: list[float],
) -> list[Point]:
    source, target = (boxes[name] for name in edge)
    if edge not in chains:  # from a blob to what works in place, or back
        start, end = sorted((source, target), key=lambda box: box.x)
        points = [(start.x + start.width / 2, start.y), (end.x - end.width / 2, end.y)]
        return points if start is source else points[::-1]
    chain = chains[edge]
    upper, lower = (source, target) if source.y <= target.y else (target, source)
    points = [(upper.x, upper.y + upper.height / 2), (upper.x, bottoms[chain[0].row])]
    for item in chain[1:-1]:
        points += [(item.x, tops[item.row]), (item.x, bottoms[item.row])]
    points += [(lower.x, tops[chain[-1].row]), (lower.x, lower.y - lower.height / 2)]
    return points if upper is source else points[::-1]
