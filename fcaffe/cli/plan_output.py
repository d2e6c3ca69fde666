"""A prediction as a table, as JSON, and with the source of all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fcaffe.cli.table import print_table
from fcaffe.plan.explain import explain
from fcaffe.plan.prediction import Prediction, Row

COLUMNS = "workers reduce ms/iteration compute exposed data update speedup efficiency images/s hours GB/worker fits"


def print_rows(prediction: Prediction, rows: Sequence[Row]) -> None:
    asked = prediction.question
    title = (
        f"{asked.work.name or asked.work.path}, {asked.batch:,} images {'a worker' if asked.per_worker else 'in all'}, "
        f"on {asked.machine.name} ({asked.machine.device.name}, {asked.math})"
    )
    columns = [*COLUMNS.split(), f"batch for {asked.wanted:.0%}"]
    print_table(title, columns, [_cells(prediction, row) for row in rows], (), numbers_from=2)


def _cells(prediction: Prediction, row: Row) -> tuple[str, ...]:
    hours, batch = prediction.hours(row), prediction.batch_for(row.workers, row.reduce)
    need = prediction.memory(row.share)["total"]
    return (
        f"{row.workers:,}",
        row.reduce,
        *(_number(1e3 * one) for one in (row.seconds, row.compute, row.exposed, row.data, row.update)),
        f"{row.speedup:,.2f}",
        f"{row.efficiency:.1%}",
        _number(row.images_per_second),
        "" if hours is None else _number(hours),
        f"{need / 1e9:.2f}",
        "yes" if need <= prediction.question.machine.device.memory else "no",
        "none" if batch is None else f"{batch:,}",
    )


def _number(value: float) -> str:
    """Four significant digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1e-3 else f"{value:.2g}"


def crossovers(prediction: Prediction) -> str:
    """From which numbers of workers on sums take longer than computing."""
    found = {name: prediction.crossover(name) for name in ("server", "tree", "ring", "halving")}
    parts = (f"{name} {'never' if workers is None else f'{workers:,}'}" for name, workers in found.items())
    return f"Communication, hidden or not, takes longer than computing from so many workers on: {', '.join(parts)}"


def row_to_json(prediction: Prediction, row: Row, explained: bool) -> dict[str, Any]:
    memory = {**prediction.memory(row.share), "device": prediction.question.machine.device.memory}
    found: dict[str, Any] = {
        "workers": row.workers,
        "reduce": row.reduce,
        "batch": row.batch,
        "images_per_worker": row.share,
        "seconds_per_iteration": row.seconds,
        "compute": row.compute,
        "exposed_communication": row.exposed,
        "data": row.data,
        "update": row.update,
        "communication": row.communication,
        "straggling": row.straggling,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "images_per_second": row.images_per_second,
        "batch_for_efficiency": prediction.batch_for(row.workers, row.reduce),
        "communication_exceeds_compute_from": prediction.crossover(row.reduce),
        "memory": memory,
        "fits": memory["total"] <= memory["device"],
    }
    if (hours := prediction.hours(row)) is not None:
        found["hours"] = hours
    if explained:
        found["explain"] = [fact._asdict() for fact in explain(prediction, row)]
    return found


def print_explained(prediction: Prediction, rows: Sequence[Row]) -> None:
    for row in rows:
        print(f"\n{row.workers:,} workers, {row.reduce}")
        facts = explain(prediction, row)
        width, values = max(len(fact.name) for fact in facts), max(len(fact.value) for fact in facts)
        for fact in facts:
            print(f"  {fact.name:<{width}}  {fact.value:<{values}}  {fact.by}")
