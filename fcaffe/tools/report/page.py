"""The page of a training as HTML."""

from __future__ import annotations

import base64
import json
import math
import os
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fcaffe.log.reader import TrainingLog
from fcaffe.output_files import replacing
from fcaffe.proto import read_solver
from fcaffe.tools import plot
from fcaffe.tools.confusion import Evaluation

POINTS = 1200  # of a curve, approximately, after thinning
MATRIX = 40  # classes up to which the page shows every pair; above, it lists the most frequent mistakes
PAIRS = 25
TESTS = (plot.SCORE, plot.TEST_LOSS, plot.OTHER_OUTPUT)  # kinds of series, in the order of their tiles
TEST_TILES = 4
COLORS = 6  # of series in page.html
OWN_COLORS = {plot.TRAIN_LOSS: 0, plot.RATE: 3}
CHARTS = {
    "Loss": plot.LOSSES,
    "Test scores": (plot.SCORE,),
    "Other test outputs": (plot.OTHER_OUTPUT,),
    "Learning rate": (plot.RATE,),
}


@dataclass
class Content:
    """The content of a page. Parts that are empty or None are omitted.

    `state` says how far the run is, and `left` how long it will take, which only a running training has; `progress` is
    from 0 to 1. A page reloads itself after `refresh` seconds, unless that is 0.
    """

    title: str
    state: str
    log: TrainingLog
    left: str = ""
    progress: float | None = None
    tiles: list[tuple[str, str]] = field(default_factory=list)
    evaluation: Evaluation | None = None
    prototxts: list[tuple[str, str]] = field(default_factory=list)
    refresh: int = 0


def write_page(path: str | os.PathLike[str], content: Content) -> None:
    """Write the page to a temporary file, then rename it. Raises FcaffeError."""
    with replacing(path, "report") as temporary:
        temporary.write_text(render(content), encoding="utf-8")


def render(content: Content) -> str:
    """The page as one file of HTML, without references to others."""
    series = plot.series_of(content.log)
    charts = list(_charts(series))
    now = time.time()
    parts = [
        _head(content, series, now),
        _curves(charts),
        confusion_card(content.evaluation, "Test net"),
        *(
            f"<div class=card><details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details></div>"
            for name, text in content.prototxts
        ),
    ]
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(content.title),
        body="\n".join(parts),
        charts=json.dumps([chart for _, chart in charts]).replace("<", "\\u003c"),
        refresh=content.refresh,
        written=f"{now:.0f}",
    )


def _head(content: Content, series: Sequence[plot.Series], now: float) -> str:
    bar = "" if content.progress is None else f"<div class=bar><div style='width:{content.progress:.1%}'></div></div>"
    trained = any(content.log.loss)  # a test of the first weights says nothing then
    tests = [one for kind in TESTS for one in series if one.kind == kind and (max(one.curve) or not trained)]
    tiles = content.tiles + [
        (f"{one.name}, iteration {max(one.curve):,}", f"{one.curve[max(one.curve)]:.4g}") for one in tests[:TEST_TILES]
    ]
    cells = "".join(
        f"<div class=card><small class=soft>{escape(name)}</small><b>{escape(value)}</b></div>" for name, value in tiles
    )
    left = f" <span id=left>{escape(content.left)}</span>" if content.left else ""
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return (
        f"<h1>{escape(content.title)}</h1><p class=soft>{escape(content.state)}{left}<br>"
        f"<small id=written>Written {written}.</small></p>{bar}<div class=tiles>{cells}</div>"
    )


# --- curves -----------------------------------------------------------------------------------------------------------


def _charts(found: list[plot.Series]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Titles of charts, and their data for the script in the page."""
    for title, kinds in CHARTS.items():
        lines, _, is_log, ends = plot.chart_of(kinds, [plot.Run("", "", found, None)])
        series = [one for one in map(_data, lines) if one["points"]]  # a legend names nothing else
        if series or kinds == plot.LOSSES:
            yield title, {"series": series, "log": is_log, "ends": ends}


def _data(line: plot.Line) -> dict[str, Any]:
    _, (kind, name, whole, _), index, curve, is_faint = line
    points = [[iteration, float(f"{value:.6g}")] for iteration, value in sorted(curve.items()) if math.isfinite(value)]
    stride = -(-len(points) // POINTS) or 1
    first = 1 if kind == plot.TEST_LOSS else 0
    return {
        "name": name if curve is whole else f"{name}, smoothed",
        "colour": OWN_COLORS.get(kind, first + index % (COLORS - first)),
        "points": points[:-1:stride] + points[-1:],
        "faint": is_faint,
        "step": kind == plot.RATE,
    }


def _curves(charts: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """The first chart in full width, the others in two columns."""
    cards = []
    for title, chart in charts:
        keys = "".join(map(_key, chart["series"]))
        scale = " <small class=soft>(logarithmic)</small>" if chart.get("log") else ""
        drawing = "<div class=chart><svg></svg><div class=told></div></div>"
        cards.append(f"<div class=card><h2>{title}{scale}</h2>{drawing}{keys}</div>")
    return f"{cards[0]}<div class=pair>{''.join(cards[1:])}</div>"


def _key(series: dict[str, Any]) -> str:
    color = "faint" if series.get("faint") else f"s{series['colour']}"
    return f"<span class=key><i style='background:var(--{color})'></i>{escape(series['name'])}</span>"


# --- evaluation -------------------------------------------------------------------------------------------------------


def page_style() -> str:
    """The style of the page of a training."""
    text = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    return text.partition("<style>")[2].partition("</style>")[0]


def confusion_card(found: Evaluation | None, what: str) -> str:
    """The counts by label and guess, and the worst mistakes, under a heading about `what`; "" without samples."""
    if found is None or not found.samples:
        return ""
    few = len(found.counts) <= MATRIX
    heading = "Rows are labels, columns are guesses." if few else "The most frequent mistakes:"
    table = _matrix(found) if few else _pairs(found)
    others = (
        "The tests in the log may have other samples, since they do not read all data" if not found.reads_all else ""
    )
    figures = "".join(
        f"<figure><img alt='' src='{data_uri(picture(one.values))}'>label {escape(found.name(one.label))}<br>"
        f"guess {escape(found.name(one.guess))}<br>"
        f"<span class=soft>{one.probability:.1%} sure</span></figure>"
        for one in found.worst
    )
    shown = f"<div class=pictures>{figures}</div>" if figures else "<p>None among these samples.</p>"
    title = f"{what} {escape(found.moment)}".rstrip()
    return (
        f"<div class=card><h2>{title}: {found.accuracy:.2%} of {found.samples:,} samples are "
        f"right</h2><p class=soft><small>{others}</small></p>"
        f"<div class=flow><div><p class=soft><small>{heading}</small></p><div class=scroll>{table}</div></div>"
        f"<div><p class=soft><small>The mistakes with the highest probability:</small></p>{shown}</div></div></div>"
    )


def _matrix(found: Evaluation) -> str:
    counts = found.counts
    most = max(1, int(np.where(np.eye(len(counts), dtype=bool), 0, counts).max()))
    head = "".join(f"<th>{escape(found.name(guess))}</th>" for guess in range(len(counts)))
    rows = []
    for label, row in enumerate(counts):
        cells = []
        for guess, count in enumerate(row):
            share = count / max(1, row.sum()) if label == guess else count / most
            depth = 0.1 + 0.55 * share if count else 0.0
            color = "good" if label == guess else "bad"
            cells.append(f"<td style='background:rgba(var(--{color}),{depth:.2f})'>{count or ''}</td>")
        right = row[label] / max(1, row.sum())
        rows.append(f"<tr><th>{escape(found.name(label))}</th>{''.join(cells)}<td class=soft>{right:.1%}</td></tr>")
    return f"<table class=matrix><tr><th></th>{head}<th></th></tr>{''.join(rows)}</table>"


def _pairs(found: Evaluation) -> str:
    wrong = np.where(np.eye(len(found.counts), dtype=bool), 0, found.counts)
    order = np.argsort(wrong, axis=None)[::-1][:PAIRS]
    pairs = [np.unravel_index(index, wrong.shape) for index in order]
    rows = "".join(
        f"<tr><td>{escape(found.name(label))}</td><td>{escape(found.name(guess))}</td>"
        f"<td class=number>{wrong[label, guess]:,}</td></tr>"
        for label, guess in pairs
        if wrong[label, guess]
    )
    return f"<table class=list><tr><th>label</th><th>guess</th><th class=number>times</th></tr>{rows}</table>"


def data_uri(pixels: np.ndarray) -> str:
    """A PNG of uint8 pixels, (H, W) gray or (H, W, 3) RGB, as a data URI for HTML."""
    rows = np.ascontiguousarray(pixels).reshape(pixels.shape[0], -1)
    lines = np.hstack([np.zeros((len(rows), 1), np.uint8), rows]).tobytes()  # filter type 0 begins each line
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return "data:image/png;base64," + base64.b64encode(png).decode()


def picture(values: np.ndarray) -> np.ndarray:
    """Values (C, H, W), scaled to uint8 pixels. Three channels are BGR; otherwise only the first channel counts."""
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) * (255 / (high - low) if high > low else 0)
    pixels = scaled.round().astype(np.uint8)
    return pixels[::-1].transpose(1, 2, 0) if len(values) == 3 else pixels[0]


def prototxts(solver_file: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Names and texts of the solver's file and of those of its nets. A file that is not there is omitted."""
    param = read_solver(solver_file)
    paths = [os.fspath(solver_file), param.net, param.train_net, *param.test_net]
    return [(path, Path(path).read_text(errors="replace")) for path in dict.fromkeys(paths) if os.path.isfile(path)]
