"""Pictures of a net's graph without Graphviz: SVG that needs nothing else, PNG and PDF by matplotlib."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from fcaffe.errors import ArgumentError, FcaffeError
from fcaffe.pycaffe.graph_layout import Box, Layout, Point, lay_out

FONT, LABEL_FONT, LINE_HEIGHT = 14.0, 12.0, 18.0
FONTS = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
ARROW, MARGIN, PADDING = 8.0, 16.0, 12.0
LARGEST = 30000  # pixels of a PNG on a side

# The widths of the characters from blank to tilde in DejaVu Sans, in hundredths of the font's size. Most others are
# narrower, none of the usual ones much wider.
_WIDTHS = bytes.fromhex(
    "20282e54405f4e1b272732542024202240404040404040404040222254545435644445464d3f3a4d4b1d1d4238564b4f"
    "3c4f453f3d494463453d452722275432323d3f373f3e233f3f1c1c3a1c613f3d3f3f2934273f3b523b3b3440224054"
)


@dataclass(frozen=True)
class Node:
    """What stands in a box: lines of text, in a "record" (a rectangle), an "octagon" or an "ellipse"."""

    lines: Sequence[str]
    shape: str
    fill: str


@dataclass(frozen=True)
class Edge:
    """A line with an arrow, and what stands at it."""

    source: str
    target: str
    label: str


@dataclass
class _Drawing:
    """The shapes of a picture, in points from its upper left corner."""

    width: float
    height: float
    outlines: list[tuple[str, str, list[Point]]]  # shape, fill, corners
    curves: list[list[Point]]  # a start, and three points for each piece: two that bend it and its end
    arrows: list[list[Point]]
    texts: list[tuple[float, float, str, float, str]]  # x, y of the middle, text, size, "start", "middle" or "end"


def svg(nodes: dict[str, Node], edges: Sequence[Edge], rankdir: str, title: str) -> bytes:
    """The graph as a file in SVG."""
    made = _draw(nodes, edges, rankdir)
    size = f'width="{made.width:.0f}pt" height="{made.height:.0f}pt" viewBox="0 0 {made.width:.0f} {made.height:.0f}"'
    out = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONTS}">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for curve in made.curves:
        pieces = " ".join(f"C{_points(curve[n : n + 3])}" for n in range(1, len(curve), 3))
        out.append(f'<path d="M{_points(curve[:1])} {pieces}" fill="none" stroke="black"/>')
    out += [f'<polygon points="{_points(arrow)}"/>' for arrow in made.arrows]
    for shape, fill, corners in made.outlines:
        if shape == "ellipse":
            (x0, y0), (x1, y1) = corners[0], corners[2]
            place = f'cx="{_n((x0 + x1) / 2)}" cy="{_n((y0 + y1) / 2)}"'
            radii = f'rx="{_n((x1 - x0) / 2)}" ry="{_n((y1 - y0) / 2)}"'
            out.append(f'<ellipse {place} {radii} fill="{fill}" stroke="black"/>')
        else:
            out.append(f'<polygon points="{_points(corners)}" fill="{fill}" stroke="black"/>')
    for x, y, text, font, anchor in made.texts:
        place = f'x="{_n(x)}" y="{_n(y + 0.35 * font)}" font-size="{font:.0f}" text-anchor="{anchor}"'
        out.append(f"<text {place}>{escape(text)}</text>")
    return "\n".join([*out, "</svg>", ""]).encode()


def by_matplotlib(nodes: dict[str, Node], edges: Sequence[Edge], rankdir: str, format: str) -> bytes:
    """The graph as a file in PNG or PDF. FcaffeError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Ellipse, PathPatch, Polygon
        from matplotlib.path import Path
    except ImportError as problem:
        raise FcaffeError(
            f"drawing a net as {format.upper()} needs Graphviz (its program dot) or matplotlib (pip install "
            "'fcaffe[plot]'); or draw it as .svg, which needs neither"
        ) from problem
    made = _draw(nodes, edges, rankdir)
    figure = Figure(figsize=(made.width / 72, made.height / 72))
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, made.width), ylim=(made.height, 0))
    axes.axis("off")
    for curve in made.curves:
        codes = [Path.MOVETO, *[Path.CURVE4] * (len(curve) - 1)]
        axes.add_patch(PathPatch(Path(curve, codes), fill=False))
    for arrow in made.arrows:
        axes.add_patch(Polygon(arrow, facecolor="black"))
    for shape, fill, corners in made.outlines:
        (x0, y0), (x1, y1) = corners[0], corners[2]
        if shape == "ellipse":
            outline: Any = Ellipse(((x0 + x1) / 2, (y0 + y1) / 2), x1 - x0, y1 - y0, facecolor=fill, edgecolor="black")
        else:
            outline = Polygon(corners, facecolor=fill, edgecolor="black")
        axes.add_patch(outline)
    for x, y, text, font, anchor in made.texts:
        side = {"start": "left", "middle": "center", "end": "right"}[anchor]
        axes.text(x, y, text, fontsize=font, ha=side, va="center_baseline", family="DejaVu Sans", parse_math=False)
    picture = io.BytesIO()
    dpi = min(96.0, 72 * LARGEST / max(made.width, made.height))
    figure.savefig(picture, format=format, dpi=dpi)
    return picture.getvalue()


def _draw(nodes: dict[str, Node], edges: Sequence[Edge], rankdir: str) -> _Drawing:
    if rankdir not in ("TB", "BT", "LR", "RL"):
        raise ArgumentError(f'rankdir "{rankdir}" is none of TB, BT, LR and RL')
    across = rankdir in ("LR", "RL")
    boxes = {name: _box(node) for name, node in nodes.items()}
    if across:
        boxes = {name: Box(box.height, box.width) for name, box in boxes.items()}
    room = [_width(edge.label, LABEL_FONT) + 2 * ARROW if across else 0.0 for edge in edges]
    layout = lay_out(boxes, [(edge.source, edge.target) for edge in edges], room)
    _turn(layout, across, rankdir in ("BT", "RL"))
    made = _Drawing(0, 0, [], [], [], [])
    for name, node in nodes.items():
        _add_node(made, node, layout.boxes[name])
    for edge, line in zip(edges, layout.lines, strict=True):
        _add_edge(made, edge, line, across)
    _fit(made)
    return made


def _box(node: Node) -> Box:
    """As large as its text needs."""
    room = {"record": 0.0, "octagon": 10.0, "ellipse": 20.0}[node.shape]
    width = max(_width(line, FONT) for line in node.lines) + 2 * (PADDING + room)
    return Box(width, LINE_HEIGHT * len(node.lines) + 1.4 * PADDING)


def _width(text: str, font: float) -> float:
    return font / 100 * sum(_WIDTHS[ord(c) - 32] if " " <= c <= "~" else 100 for c in text)


def _turn(layout: Layout, across: bool, back: bool) -> None:
    """Let a net that runs down the page run to the right (`across`), or in the other direction (`back`)."""

    def turned(x: float, y: float) -> Point:
        y = -y if back else y
        return (y, x) if across else (x, y)

    for box in layout.boxes.values():
        box.x, box.y = turned(box.x, box.y)
        if across:
            box.width, box.height = box.height, box.width
    layout.lines = [[turned(*point) for point in line] for line in layout.lines]


def _add_node(made: _Drawing, node: Node, box: Box) -> None:
    left, right, top, bottom = (
        box.x - box.width / 2,
        box.x + box.width / 2,
        box.y - box.height / 2,
        box.y + box.height / 2,
    )
    if node.shape == "octagon":
        cut = box.height * 0.3
        corners = [(left, top + cut), (left + cut, top), (right - cut, top), (right, top + cut)]
        corners += [(right, bottom - cut), (right - cut, bottom), (left + cut, bottom), (left, bottom - cut)]
    else:
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    made.outlines.append((node.shape, node.fill, corners))
    first = box.y - LINE_HEIGHT * (len(node.lines) - 1) / 2
    for number, line in enumerate(node.lines):
        made.texts.append((box.x, first + number * LINE_HEIGHT, line, FONT, "middle"))


def _add_edge(made: _Drawing, edge: Edge, line: list[Point], across: bool) -> None:
    """A line through its points, curved between the pairs of them; its directions there are along the net."""
    sideways = len(line) == 2  # between a blob and what works in place on it
    horizontal = across != sideways
    curve = [line[0]]
    for number, (a, b) in enumerate(itertools.pairwise(line)):
        if number % 2 == 0 and not sideways:
            curve += [a, b, b]
        elif horizontal:
            middle = (a[0] + b[0]) / 2
            curve += [(middle, a[1]), (middle, b[1]), b]
        else:
            middle = (a[1] + b[1]) / 2
            curve += [(a[0], middle), (b[0], middle), b]
    made.curves.append(curve)
    x, y = line[-1]
    before = line[-2] if sideways else line[-3]
    if horizontal:
        step = ARROW if before[0] < x else -ARROW
        made.arrows.append([(x, y), (x - step, y - ARROW / 2.4), (x - step, y + ARROW / 2.4)])
    else:
        step = ARROW if before[1] < y else -ARROW
        made.arrows.append([(x, y), (x - ARROW / 2.4, y - step), (x + ARROW / 2.4, y - step)])
    if edge.label:  # where the line ends, on the side that it does not come from
        if horizontal:
            down = y > line[0][1] + 1
            place = (x - 1.2 * step, y + LABEL_FONT * (0.7 if down else -0.7))
            made.texts.append((*place, edge.label, LABEL_FONT, "end" if step > 0 else "start"))
        else:
            left = x < line[0][0] - 1
            made.texts.append((x + (-6 if left else 6), y - step, edge.label, LABEL_FONT, "end" if left else "start"))


def _fit(made: _Drawing) -> None:
    """Move everything so that the upper left corner is the origin, and set the picture's size."""
    everything = [p for _, _, corners in made.outlines for p in corners] + [p for line in made.curves for p in line]
    for x, y, text, font, anchor in made.texts:
        width = _width(text, font)
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        everything += [(left, y - font / 2), (left + width, y + font / 2)]
    xs, ys = zip(*everything, strict=True) if everything else ((0.0,), (0.0,))
    dx, dy = MARGIN - min(xs), MARGIN - min(ys)

    def moved(points: list[Point]) -> list[Point]:
        return [(x + dx, y + dy) for x, y in points]

    made.width, made.height = max(xs) + dx + MARGIN, max(ys) + dy + MARGIN
    made.outlines = [(shape, fill, moved(corners)) for shape, fill, corners in made.outlines]
    made.curves = [moved(curve) for curve in made.curves]
    made.arrows = [moved(arrow) for arrow in made.arrows]
    made.texts = [(x + dx, y + dy, text, font, anchor) for x, y, text, font, anchor in made.texts]


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
