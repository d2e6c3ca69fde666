"""The page of a training as HTML."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fcaffe.log.reader import Curve, NetCurves, TrainingLog
from fcaffe.output_files import replacing
from fcaffe.timeline import KINDS
from fcaffe.tools.report.evaluation import Evaluation
from fcaffe.tools.report.images import data_uri, picture, sheet

POINTS = 1200  # of a curve, which is thinned to about so many
MATRIX = 40  # classes up to which every pair is shown; of more, the pairs that are confused most often
PAIRS = 25


@dataclass
class LayerRow:
    """A layer of the table; `seconds` of its forward pass, None where it was not timed."""

    name: str
    type: str
    shapes: list[tuple[int, ...]]
    parameters: int
    macs: int
    seconds: float | None = None


@dataclass
class Content:
    """What the page shows; what is empty or None is left out.

    `state` is a sentence about how far the run is, `progress` from 0 to 1. `seconds` has the timeline of each worker,
    by kind of work. `drawing` is an SVG of the net. A page with `refresh` loads itself anew after so many seconds.
    """

    title: str
    state: str
    log: TrainingLog
    progress: float | None = None
    tiles: list[tuple[str, str]] = field(default_factory=list)
    evaluation: Evaluation | None = None
    filters: np.ndarray | None = None
    filters_of: str = ""
    drawing: str = ""
    layers: list[LayerRow] = field(default_factory=list)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    prototxts: list[tuple[str, str]] = field(default_factory=list)
    refresh: int = 0


def write_page(path: str | os.PathLike[str], content: Content) -> None:
    """Write the page whole or not at all (FcaffeError)."""
    with replacing(path, "report") as temporary:
        temporary.write_text(render(content), encoding="utf-8")


def render(content: Content) -> str:
    """The page, which needs no other file."""
    charts = list(_charts(content.log))
    parts = [_head(content), *_curves(charts), *_confusion(content.evaluation), *_inside(content), *_time(content)]
    parts += [
        f"<div class=card><details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details></div>"
        for name, text in content.prototxts
    ]
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(content.title),
        body="\n".join(parts),
        charts=json.dumps([chart for _, chart in charts]).replace("<", "\\u003c"),
        refresh=content.refresh,
    )


def _head(content: Content) -> str:
    bar = "" if content.progress is None else f"<div class=bar><div style='width:{content.progress:.1%}'></div></div>"
    tiles = "".join(
        f"<div class=card><small class=soft>{escape(name)}</small><b>{escape(value)}</b></div>"
        for name, value in content.tiles
    )
    return (
        f"<h1>{escape(content.title)}</h1><p class=soft>{escape(content.state)}</p>{bar}<div class=tiles>{tiles}</div>"
    )


# --- curves -----------------------------------------------------------------------------------------------------------


def _charts(log: TrainingLog) -> Iterable[tuple[str, dict[str, Any]]]:
    """Titles, and what the page's script draws."""
    losses: list[dict[str, Any]] = []
    if log.loss:
        losses.append({**_series("training", log.loss, 0), "faint": True})
        losses.append(_series("training, smoothed", smooth(log.loss), 0))
    scores: list[dict[str, Any]] = []
    for number, net in sorted(log.test_nets.items()):
        of = f" (net {number})" if len(log.test_nets) > 1 else ""
        for name, curve in _test_losses(net):
            losses.append(_series(f"test {name}{of}", curve, 1 + (len(losses) - 2 * bool(log.loss)) % 5))
        for output in net.outputs.values():
            if not output.is_loss:
                scores.append(_series(f"{output.name}{of}", output.curve, len(scores) % 6))
    positive = all(point[1] > 0 for series in losses for point in series["points"])
    values = [point[1] for series in losses for point in series["points"]]
    wide = bool(values) and positive and max(values) > 20 * min(values)
    yield "Loss", {"series": losses, "log": wide}
    if scores:
        yield "Test outputs", {"series": scores}
    if log.rate:
        yield "Learning rate", {"series": [{**_series("rate", log.rate, 3), "step": True}], "from_zero": True}


def _test_losses(net: NetCurves) -> list[tuple[str, Curve]]:
    named = [(output.name, output.curve) for output in net.outputs.values() if output.is_loss]
    return named or ([("loss", net.loss)] if net.loss else [])


def _series(name: str, curve: Curve, colour: int) -> dict[str, Any]:
    points = [[iteration, float(f"{value:.6g}")] for iteration, value in sorted(curve.items()) if math.isfinite(value)]
    stride = -(-len(points) // POINTS) or 1
    return {"name": name, "colour": colour, "points": points[:-1:stride] + points[-1:]}


def smooth(curve: Curve) -> Curve:
    """The running mean over a thirtieth of the points, of as many on either side as there are."""
    iterations = sorted(iteration for iteration in curve if math.isfinite(curve[iteration]))
    values = np.array([curve[iteration] for iteration in iterations])
    half = len(values) // 60
    sums = np.concatenate([[0.0], np.cumsum(values)])
    smoothed = {}
    for index, iteration in enumerate(iterations):
        first, last = max(0, index - half), min(len(values), index + half + 1)
        smoothed[iteration] = float(sums[last] - sums[first]) / (last - first)
    return smoothed


def _curves(charts: Sequence[tuple[str, dict[str, Any]]]) -> Iterable[str]:
    for title, chart in charts:
        keys = "".join(
            _key(one["name"], "var(--faint)" if one.get("faint") else _colour(one["colour"])) for one in chart["series"]
        )
        scale = " <small class=soft>(logarithmic)</small>" if chart.get("log") else ""
        drawing = "<div class=chart><svg></svg><div class=told></div></div>"
        yield f"<div class=card><h2>{title}{scale}</h2>{drawing}{keys}</div>"


def _colour(index: int) -> str:
    return f"var(--s{index})" if index < 6 else "var(--soft)"


def _key(name: str, colour: str) -> str:
    return f"<span class=key><i style='background:{colour}'></i>{escape(name)}</span>"


# --- what is confused -------------------------------------------------------------------------------------------------


def _confusion(found: Evaluation | None) -> Iterable[str]:
    if found is None or not found.samples:
        return
    classes = len(found.counts)
    table = _matrix(found.counts) if classes <= MATRIX else _pairs(found.counts)
    heading = "Rows are labels, columns guesses" if classes <= MATRIX else "Most frequent mistakes"
    yield (
        f"<div class=pair><div class=card><h2>{found.accuracy:.2%} of {found.samples:,} test samples are right</h2>"
        f"<p class=soft><small>{heading}.</small></p><div class=scroll>{table}</div></div>"
    )
    figures = "".join(
        f"<figure><img alt='' src='{data_uri(picture(one.values))}'>{one.label}, not {one.guess}<br>"
        f"<span class=soft>{one.probability:.1%} sure</span></figure>"
        for one in found.worst
    )
    shown = f"<div class=pictures>{figures}</div>" if figures else "<p>None among these samples.</p>"
    yield f"<div class=card><h2>The surest mistakes</h2>{shown}</div></div>"


def _matrix(counts: np.ndarray) -> str:
    most = max(1, int(np.where(np.eye(len(counts), dtype=bool), 0, counts).max()))
    head = "".join(f"<th>{guess}</th>" for guess in range(len(counts)))
    rows = []
    for label, row in enumerate(counts):
        cells = []
        for guess, count in enumerate(row):
            share = count / max(1, row.sum()) if label == guess else count / most
            depth = 0.1 + 0.55 * share if count else 0.0
            colour = "good" if label == guess else "bad"
            cells.append(f"<td style='background:rgba(var(--{colour}),{depth:.2f})'>{count or ''}</td>")
        right = row[label] / max(1, row.sum())
        rows.append(f"<tr><th>{label}</th>{''.join(cells)}<td class=soft>{right:.1%}</td></tr>")
    return f"<table class=matrix><tr><th></th>{head}<th></th></tr>{''.join(rows)}</table>"


def _pairs(counts: np.ndarray) -> str:
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, counts)
    order = np.argsort(wrong, axis=None)[::-1][:PAIRS]
    cells = [np.unravel_index(index, wrong.shape) for index in order]
    rows = [(str(label), str(guess), f"{wrong[label, guess]:,}") for label, guess in cells if wrong[label, guess]]
    return _table(("label", "guess", "times"), rows, numbers_from=2)


# --- what is inside ---------------------------------------------------------------------------------------------------


def _inside(content: Content) -> Iterable[str]:
    if content.filters is not None:
        image = f"<div class=filters><img alt='' src='{data_uri(sheet(content.filters))}'></div>"
        yield f"<div class=card><h2>Filters of {escape(content.filters_of)}</h2>{image}</div>"
    if content.layers:
        timed = any(layer.seconds is not None for layer in content.layers)
        rows = [
            (
                layer.name,
                layer.type,
                ", ".join(" x ".join(map(str, shape)) or "scalar" for shape in layer.shapes),
                f"{layer.parameters:,}" if layer.parameters else "",
                f"{layer.macs:,}" if layer.macs else "",
                *([f"{1000 * (layer.seconds or 0):.3f}"] if timed else []),
            )
            for layer in content.layers
        ]
        columns = ["layer", "type", "top shapes", "parameters", "multiply-adds", *(["forward ms"] if timed else [])]
        yield f"<div class=card><h2>Layers</h2><div class=scroll>{_table(columns, rows, numbers_from=3)}</div></div>"
    if content.drawing:
        yield f"<div class=card><h2>The net</h2><div class='scroll graph'>{content.drawing}</div></div>"


def _time(content: Content) -> Iterable[str]:
    if not any(sum(spent.values()) for spent in content.seconds.values()):
        return
    kinds = [kind for kind in KINDS if any(spent.get(kind, 0) >= 0.005 for spent in content.seconds.values())]
    colours = [_colour(index) for index in range(len(kinds))]
    bars = []
    for name, spent in content.seconds.items():
        total = sum(spent.values()) or 1.0
        shares = "".join(
            f"<div title='{kind} {spent.get(kind, 0):.2f} s' style='width:{spent.get(kind, 0) / total:.2%};"
            f"background:{colour}'></div>"
            for kind, colour in zip(kinds, colours, strict=True)
        )
        bars.append(f"<small class=soft>{escape(name)}, {total:.1f} s</small><div class=shares>{shares}</div>")
    keys = "".join(map(_key, kinds, colours))
    rows = [(name, *(f"{spent.get(kind, 0):.2f}" for kind in kinds)) for name, spent in content.seconds.items()]
    table = _table(("seconds", *kinds), rows, numbers_from=1)
    yield f"<div class=card><h2>Where the time goes</h2>{''.join(bars)}{keys}<div class=scroll>{table}</div></div>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if index >= numbers_from else ''}>{escape(text)}</{tag}>"
            for index, text in enumerate(texts)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table class=list><thead><tr>{cells('th', columns)}</tr></thead><tbody>{body}</tbody></table>"
