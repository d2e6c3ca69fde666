"""A plan as a table, as JSON, and with all that its numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fcaffe.cli.table import print_table
from fcaffe.plan.explain import as_json, explain
from fcaffe.plan.plan import Plan, Row

COLUMNS = (
    "workers",
    "reduce",
    "ms/iteration",
    "compute",
    "exposed",
    "data",
    "update",
    "speedup",
    "efficiency",
    "images/s",
    "hours",
    "GB/worker",
    "fits",
    "batch for {}",
)


def print_rows(plan: Plan, rows: Sequence[Row]) -> None:
    asked = plan.question
    title = (
        f"{asked.work.name or asked.work.path}, {asked.batch:,} images {'a worker' if asked.per_worker else 'in all'}, "
        f"on {asked.machine.name} ({asked.machine.device.name}, {asked.math})"
    )
    columns = [column.format(f"{asked.wanted:.0%}") for column in COLUMNS]
    print_table(title, columns, [_cells(plan, row) for row in rows], (), numbers_from=2)


def _cells(plan: Plan, row: Row) -> tuple[str, ...]:
    hours = plan.hours(row)
    need = plan.memory(row.share)["total"]
    batch = plan.batch_for(row.workers, row.reduce)
    return (
        f"{row.workers:,}",
        row.reduce,
        *(_number(1e3 * one) for one in (row.seconds, row.compute, row.exposed, row.data, row.update)),
        f"{row.speedup:,.2f}",
        f"{row.efficiency:.1%}",
        _number(row.images_per_second),
        "" if hours is None else _number(hours),
        f"{need / 1e9:.2f}",
        "yes" if need <= plan.question.machine.device.memory else "no",
        "none" if batch is None else f"{batch:,}",
    )


def _number(value: float) -> str:
    """Four digits that count, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1e-3 else f"{value:.2g}"


def crossovers(plan: Plan) -> str:
    """From how many workers on sums take longer than computing."""
    parts = []
    for name in ("server", "tree", "ring", "halving"):
        workers = plan.crossover(name)
        parts.append(f"{name} {'never' if workers is None else f'{workers:,}'}")
    return f"Communication, hidden or not, takes longer than computing from so many workers on: {', '.join(parts)}"


def row_to_json(plan: Plan, row: Row, explained: bool) -> dict[str, Any]:
    need = plan.memory(row.share)
    memory = {**need, "device": plan.question.machine.device.memory}
    hours = plan.hours(row)
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
        "batch_for_efficiency": plan.batch_for(row.workers, row.reduce),
        "communication_exceeds_compute_from": plan.crossover(row.reduce),
        "memory": memory,
        "fits": need["total"] <= memory["device"],
    }
    if hours is not None:
        found["hours"] = hours
    if explained:
        found["explain"] = as_json(explain(plan, row))
    return found


def print_explained(plan: Plan, rows: Sequence[Row]) -> None:
    for row in rows:
        print(f"\n{row.workers:,} workers, {row.reduce}")
        facts = explain(plan, row)
        width = max(len(fact.name) for fact in facts)
        values = max(len(fact.value) for fact in facts)
        for fact in facts:
            print(f"  {fact.name:<{width}}  {fact.value:<{values}}  {fact.by}")
