"""Charts of a prediction: one sum over the workers, as Figure 4 of FireCaffe's paper, and an iteration's parts, as
Figure 1 of its supplement."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from fcaffe.plan.prediction import Prediction, Row
from fcaffe.tools.plot import new_picture, scale_wide, style

DRAWN = {"server": ("parameter server", "#d1642a"), "tree": ("tree", "#2f6db3"), "ring": ("ring", "#3f8f4f")}


def draw(prediction: Prediction, counts: Sequence[int], path: str | os.PathLike[str]) -> None:
    """Parameter server against tree against ring, for these numbers of workers from 2 on. Raises FcaffeError."""
    most = max([2, *counts])
    powers = [1 << step for step in range(1, most.bit_length() + 1) if 1 << step <= most]
    workers = sorted({*powers, *(count for count in counts if count > 1)})
    with new_picture(path, (11, 4.8)) as figure:
        left, right = figure.subplots(1, 2)
        title = f"{prediction.work.name or 'net'} on {prediction.machine.name}"
        images = f"{prediction.batch:,} images {'a worker' if prediction.per_worker else 'in all'}"
        figure.suptitle(f"{title}, {images}", fontsize=13)
        left.set_title(f"All sums of an iteration: {prediction.work.gradient_bytes / 1e6:.1f} MB", fontsize=11)
        _draw(left, prediction, workers, [], "time (ms)", lambda row: 1e3 * row.communication)
        how = "overlapping backward" if prediction.overlap else "without overlap"
        right.set_title(f"An iteration, sums {how}", fontsize=11)
        compute = [prediction.row(count, "ring").compute for count in workers]
        right.plot(workers, compute, color="#222222", linestyle="--", linewidth=1.2, label="computing alone")
        _draw(right, prediction, workers, compute, "time (s)", lambda row: row.seconds)


def _draw(
    axes: Any,
    prediction: Prediction,
    workers: Sequence[int],
    every: list[float],
    label: str,
    of_row: Callable[[Row], float],
) -> None:
    """One curve for each reduction; `every` has the values that are drawn already."""
    for name, (words, color) in DRAWN.items():
        values = [of_row(prediction.row(count, name)) for count in workers]
        every = every + values
        axes.plot(workers, values, marker="o", markersize=3, color=color, label=words)
    axes.set_ylabel(label)
    if not scale_wide(axes, every):
        axes.set_ylim(bottom=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(workers if len(workers) <= 9 else workers[:: (len(workers) + 8) // 9])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_xlabel("workers")
    style(axes)
    axes.legend(frameon=False, fontsize=9)
