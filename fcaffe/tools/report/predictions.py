"""The page of `fcaffe predict`: pictures with the probabilities of their classes, and the mistakes where known."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from fcaffe.data.form import Form
from fcaffe.output_files import replacing
from fcaffe.tools.confusion import WORST, Evaluation, Mistake
from fcaffe.tools.predictor import Predictor, Stored
from fcaffe.tools.report.page import confusion_card, data_uri, page_style

SIDE = 96  # pixels of a thumbnail's longer side
MOST = 2000  # pictures in a page

_STYLE = """
.predictions { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 12px; }
.predictions .card { display: flex; gap: 12px; padding: 10px; margin: 0; overflow: hidden; }
.predictions img { width: 96px; height: 96px; object-fit: contain; }
.predictions div { min-width: 0; flex: 1; font-size: 13px; overflow-wrap: anywhere; }
.predictions i { display: block; height: 4px; background: var(--s0); border-radius: 2px; }
.wrong { border-color: rgb(var(--bad)); }
"""


def write_predictions(
    path: str, predictions: Sequence[tuple[str, Any, str, np.ndarray]], predictor: Predictor, top: int
) -> None:
    """Write the page. A prediction is a name, a picture, the name of its class or "", and the probabilities."""
    labels = predictor.labels
    counts = np.zeros((len(labels), len(labels)), np.int64)
    cards, wrong = list[str](), list[Mistake]()
    thumbnail = Form(3, (SIDE, SIDE), "fill")
    for name, picture, known, row in predictions:
        guess = int(row.argmax())
        is_wrong = known in labels and labels[guess] != known
        if known in labels:
            counts[labels.index(known), guess] += 1
        if len(cards) >= MOST and not is_wrong:
            continue
        pixels = thumbnail.fit(_pixels(picture, predictor))
        if is_wrong:
            wrong.append(Mistake(float(row[guess]), labels.index(known), guess, pixels))
            wrong = sorted(wrong, key=lambda one: -one.probability)[:WORST]
        best = np.argsort(-row, kind="stable")[:top]
        bars = "".join(
            f"{escape(labels[index])} {row[index]:.1%}<i style='width:{max(row[index], 0.004):.1%}'></i>"
            for index in best
        )
        told = f"<br><small class=soft>is {escape(known)}</small>" if is_wrong else ""
        cards.append(
            f"<div class='card{' wrong' * is_wrong}'><img alt='' src='{data_uri(_rgb(pixels))}'>"
            f"<div><small class=soft>{escape(name)}</small>{told}<br>{bars}</div></div>"
        )
    evaluation = Evaluation(counts, wrong, "", labels, reads_all=True)
    more = f", of which the first {MOST:,} are shown" if len(predictions) > MOST else ""
    by = f"{escape(predictor.path)} with {escape(predictor.weights)}"
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><!-- predictions --><title>Predictions</title>"
        f"<style>{page_style()}{_STYLE}</style><main><h1>Predictions</h1><p class=soft>{len(predictions):,} pictures, "
        f"by {by}{more}</p>"
        f"{confusion_card(evaluation, 'These pictures')}<div class=predictions>{''.join(cards)}</div></main></html>"
    )
    with replacing(path, "page") as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def _pixels(picture: Any, predictor: Predictor) -> np.ndarray:
    if isinstance(picture, Stored):
        return np.asarray(picture.pixels)
    return predictor.preprocessing.pixels(picture)


def _rgb(pixels: np.ndarray) -> np.ndarray:
    return pixels[::-1].transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
