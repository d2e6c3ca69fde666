"""`fcaffe plan`: what more workers would buy."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from fcaffe import log
from fcaffe.cli.flags import command, numbers, numbers_of_shape
from fcaffe.cli.table import print_table, say
from fcaffe.errors import UsageError
from fcaffe.plan.machine import MACHINES, find, read_machine
from fcaffe.plan.prediction import Prediction, Row
from fcaffe.plan.reductions import REDUCTIONS
from fcaffe.plan.work import Work, work_of_net

MOST_WORKERS = 10_000_000
WORKERS = "1,2,4,8,16,32,64,128"
EACH = "per-worker"
MATHS = ["fp32", "tf32", "fp16", "bf16"]
COLUMNS = "workers reduce ms/iteration compute exposed data update speedup efficiency images/s hours GB/worker fits"


@command(
    example="plan --net train_val.prototxt --batch 1024 --machine h200 --workers 1,8,64",
    help="Predict what a training takes on several workers: seconds of an iteration by parts, speedup, time of the "
    "training, the best reduction, where communication takes over, memory. The net's data sets need not exist.",
)
@click.option("--solver", default="", metavar="FILE", help="Solver prototxt, whose net is planned for.")
@click.option("--net", "--model", "net", default="", metavar="FILE", help="Net prototxt, instead of a solver.")
@click.option(
    "--batch",
    default="",
    metavar="N",
    help="Batch of all workers, which they split (the prototxt's); per-worker: each takes a whole one, per-worker:N "
    "one of N.",
)
@click.option("--workers", default=WORKERS, metavar="N,...", help=f"Numbers of workers ({WORKERS}).")
@click.option("--machine", default="", metavar="NAME|FILE", help="Machine: titan, h200, ..., or a JSON file.")
@click.option(
    "--reduce", "names", default="best", metavar="NAME,...", help="Reductions; all: those compared (best: the fastest)."
)
@click.option("--no-overlap", "overlap", flag_value=False, default=True, help="Sums begin when backward is through.")
@click.option(
    "--parallel", default="data", type=click.Choice(["data", "hybrid"]), help="As --parallel of train (data)."
)
@click.option("--math", default="fp32", type=click.Choice(MATHS), help="Type of the factors (fp32).")
@click.option("--bucket-mb", type=float, metavar="X", help="Size of buckets (fcaffe's rule).")
@click.option("--epochs", type=float, metavar="X", help="Epochs of the training, of --images.")
@click.option("--images", type=int, metavar="N", help="Images of the training set.")
@click.option("--input-shape", default="", metavar="C,H,W", help="Shape of the records of a data set that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(**flags: Any) -> int:
    counts = numbers("--workers", flags["workers"]) or [1]
    if max(counts) > MOST_WORKERS:
        raise UsageError(f"--workers takes numbers up to {MOST_WORKERS:,}, not '{flags['workers']}'")
    if not flags["machine"]:
        raise UsageError(f"plan needs a machine: --machine {'|'.join(MACHINES)}, or --machine FILE (docs/firecaffe.md)")
    machine = read_machine(flags["machine"])
    machine.device.peak_of(flags["math"])  # refuses a type that the device has no speed for
    known = {name: name for name in (*REDUCTIONS, "best", "all")}
    reductions = [find(name, known, "reduction") for name in flags["names"].split(",")]
    work = _work(flags)
    size, per_worker = _batch_of(flags["batch"], work)
    if per_worker and flags["parallel"] == "hybrid":
        raise UsageError("--parallel hybrid does not go with --batch per-worker: leave one of them out")
    if not per_worker and max(counts) > size:
        log.warning(
            f"{max(counts)} workers for a batch of {size} images: some have none, which `fcaffe train` refuses; "
            "--batch per-worker gives each a whole one"
        )
    prediction = Prediction(work, machine, size, per_worker, flags["math"], **_settings(flags))
    rows = prediction.rows(counts, reductions)
    if flags["as_json"]:
        print(json.dumps([_row_to_json(prediction, row) for row in rows], indent=2))
        return 0
    images = f"{size:,} images {'a worker' if per_worker else 'in all'}"
    title = f"{work.name or work.path}, {images}, on {machine.name} ({machine.device.name}, {flags['math']})"
    print_table(title, COLUMNS.split(), [_cells(prediction, row) for row in rows], numbers_from=2)
    found = {name: prediction.crossover(name) for name in ("server", "tree", "ring", "halving")}
    parts = (f"{name} {'never' if workers is None else f'{workers:,}'}" for name, workers in found.items())
    say(f"Communication, hidden or not, takes longer than computing from so many workers on: {', '.join(parts)}")
    return 0


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    """The other fields of the prediction. Raises UsageError."""
    for name in ("bucket_mb", "epochs", "images"):
        if flags[name] is not None and not 0 < flags[name] < math.inf:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, not {flags[name]:g}")
    if (flags["epochs"] is None) != (flags["images"] is None):
        raise UsageError("--epochs and --images belong together: epochs of how many images, or how often")
    bucket = None if flags["bucket_mb"] is None else flags["bucket_mb"] * (1 << 20)
    return {"bucket": bucket, "hybrid": flags["parallel"] == "hybrid"} | {
        name: flags[name] for name in ("overlap", "epochs", "images")
    }


def _work(flags: dict[str, Any]) -> Work:
    solver, net, shape = flags["solver"], flags["net"], numbers_of_shape(flags["input_shape"])
    if bool(solver) == bool(net):
        raise UsageError("plan needs the prototxt of a solver or of a net: --solver FILE or --net FILE")
    return work_of_net(solver or net, shape, bool(solver))


def _batch_of(text: str, work: Work) -> tuple[int, bool]:
    """The number of samples of --batch, and whether it counts for each worker. Raises UsageError."""
    each = text == EACH or text.startswith(f"{EACH}:")
    number = text.removeprefix(EACH).removeprefix(":") if each else text
    if number and not number.isdecimal():
        raise UsageError(f"--batch takes a number, {EACH} or {EACH}:N, not '{text}'")
    samples = int(number) if number else work.batch
    if samples < 1:
        raise UsageError(f"--batch {text}: a batch has one sample or more")
    return samples, each


def _cells(prediction: Prediction, row: Row) -> tuple[str, ...]:
    hours = prediction.hours(row)
    need = prediction.memory(row)["total"]
    return (
        f"{row.workers:,}",
        row.reduce,
        *(_number(1e3 * one) for one in (row.seconds, row.compute, row.exposed, row.data, row.update)),
        f"{row.speedup:,.2f}",
        f"{row.efficiency:.1%}",
        _number(row.images_per_second),
        "" if hours is None else _number(hours),
        f"{need / 1e9:.2f}",
        "yes" if need <= prediction.machine.device.memory else "no",
    )


def _number(value: float) -> str:
    """Four significant digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value >= 1e-3 or not value else "<0.001"


def _row_to_json(prediction: Prediction, row: Row) -> dict[str, Any]:
    memory = {**prediction.memory(row), "device": prediction.machine.device.memory}
    names = ("workers", "reduce", "batch", "compute", "data", "update", "communication", "speedup", "efficiency")
    found: dict[str, Any] = {name: getattr(row, name) for name in (*names, "images_per_second")} | {
        "images_per_worker": row.share,
        "seconds_per_iteration": row.seconds,
        "exposed_communication": row.exposed,
        "communication_exceeds_compute_from": prediction.crossover(row.reduce),
        "memory": memory,
        "fits": memory["total"] <= memory["device"],
    }
    if (hours := prediction.hours(row)) is not None:
        found["hours"] = hours
    return found
