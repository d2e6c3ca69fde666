"""`fcaffe plan`: what more workers would buy."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import click

from fcaffe import log
from fcaffe.cli import glog
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import common_flags, numbers_of_shape
from fcaffe.cli.plan_output import crossovers, print_explained, print_rows, row_to_json
from fcaffe.cli.usage import Command
from fcaffe.errors import FcaffeError, UsageError
from fcaffe.plan.devices import DEVICES, find
from fcaffe.plan.machine import MACHINES, Machine
from fcaffe.plan.machine_file import MACHINE, parse_link, read_machine
from fcaffe.plan.prediction import Prediction
from fcaffe.plan.question import Question, check
from fcaffe.plan.reductions import check_names
from fcaffe.plan.work import Work, work_of_net, work_of_solver

WORKERS = "1,2,4,8,16,32,64,128"
EACH = "per-worker"


@click.command(
    cls=Command,
    example="plan --net train_val.prototxt --batch 1024 --machine h200 --workers 1,8,64",
    help="Predict what a training takes on several workers: seconds of an iteration by parts, speedup, time of the "
    "training, the best reduction, where communication takes over, the batch for an efficiency, memory. The net's data "
    "sets need not exist.",
)
@click.option("--solver", default="", metavar="FILE", help="Solver prototxt, whose net is planned for.")
@click.option("--net", "--model", "net", default="", metavar="FILE", help="Net prototxt, in place of a solver.")
@click.option(
    "--batch",
    default="",
    metavar="N",
    help="Batch of all workers, which they split (the prototxt's); per-worker: each takes a whole one, per-worker:N "
    "one of N.",
)
@click.option("--workers", default=WORKERS, metavar="N,...", help=f"Numbers of workers ({WORKERS}).")
@click.option("--machine", default="", metavar="NAME|FILE", help="Machine: titan, h200, ..., or a JSON file.")
@click.option("--device", default="", metavar="NAME", help="What computes: K20 to B200, or a CPU.")
@click.option("--devices-per-node", type=int, metavar="N", help="Devices of a node.")
@click.option("--between", default="", metavar="LINK", help="Between nodes: NDR, 10GbE, ..., or 1.5us,2.8GB/s.")
@click.option("--within", default="", metavar="LINK", help="Within a node: NVLink4, PCIe4, ..., or as above.")
@click.option("--speed", type=float, metavar="N", help="Images a second that one device was measured to train.")
@click.option(
    "--contention", type=float, metavar="X", help="How many times slower links are if all nodes send at once."
)
@click.option(
    "--reduce", "names", default="best", metavar="NAME,...", help="Reductions; all: those compared (best: the fastest)."
)
@click.option("--no-overlap", "overlap", flag_value=False, default=True, help="Sums begin when backward is through.")
@click.option("--bucket-mb", type=float, metavar="X", help="Size of buckets (fcaffe's rule).")
@click.option("--stragglers", type=float, default=0.0, metavar="X", help="Relative spread of the workers' speeds (0).")
@click.option("--epochs", type=float, metavar="X", help="Epochs of the training, of --images.")
@click.option("--images", type=int, metavar="N", help="Images of the training set.")
@click.option("--efficiency", default=0.9, metavar="X", help="For which the batch is looked for (0.9).")
@click.option("--input-shape", default="", metavar="C,H,W", help="Shape of the records of a data set that is missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", default="", metavar="FILE", help="Draw server, tree and ring: .png, .pdf or .svg.")
@click.option("--explain", "explained", is_flag=True, help="Show formula, inputs and their sources for each number.")
@click.option("--calibrate", is_flag=True, help="Measure this machine, and its links if started under several ranks.")
@click.option("--out", default=MACHINE, metavar="FILE", help=f"With --calibrate: the file ({MACHINE}).")
@engine_flags
@common_flags
def plan(
    solver: str,
    net: str,
    batch: str,
    workers: str,
    names: str,
    overlap: bool,
    bucket_mb: float | None,
    stragglers: float,
    epochs: float | None,
    images: int | None,
    efficiency: float,
    input_shape: str,
    as_json: bool,
    plot: str,
    explained: bool,
    calibrate: bool,
    out: str,
    engines: EngineFlags,
    **described: Any,
) -> int:
    glog.begin("", None, "", True)
    counts = _counts(workers)
    shape = numbers_of_shape(input_shape)
    if calibrate:
        return _calibrate(solver, net, batch, shape, engines, out)
    machine = _machine_of(**described)
    reductions = names.split(",")
    check_names(reductions)
    for flag, value in (("--bucket-mb", bucket_mb), ("--epochs", epochs), ("--images", images)):
        _check_range(flag, value)
    if not (0 <= stragglers < 1 and 0 < efficiency < 1):
        raise UsageError("--stragglers takes a number from 0 to 1, and --efficiency one between 0 and 1")
    if (epochs is None) != (images is None):
        raise UsageError("--epochs and --images belong together: epochs of how many images, or how often")
    work = _work(solver, net, shape)
    size, per_worker = _batch_of(batch, work)
    bucket = None if bucket_mb is None else bucket_mb * (1 << 20)
    question = Question(
        work, machine, size, per_worker, engines.math, overlap, bucket, stragglers, epochs, images, efficiency
    )
    check(question)
    if not per_worker and max(counts) > size:
        log.warning(
            f"{max(counts)} workers for a batch of {size} images: some have none, which `fcaffe train` refuses; "
            "--batch per-worker gives each a whole one"
        )
    prediction = Prediction(question)
    rows = prediction.rows(counts, reductions)
    if plot:
        from fcaffe.plan.picture import draw

        draw(prediction, counts, plot)
    if as_json:
        print(json.dumps([row_to_json(prediction, row, explained) for row in rows], indent=2))
        return 0
    print_rows(prediction, rows)
    print(crossovers(prediction))
    if explained:
        print_explained(prediction, rows)
    return 0


def _work(solver: str, net: str, shape: tuple[int, ...] | None) -> Work:
    if bool(solver) == bool(net):
        raise UsageError("plan needs the prototxt of a solver or of a net: --solver FILE or --net FILE")
    return work_of_solver(solver, shape) if solver else work_of_net(net, shape)


def _calibrate(solver: str, net: str, batch: str, shape: tuple[int, ...] | None, engines: EngineFlags, out: str) -> int:
    from fcaffe.cli.plan_calibration import run
    from fcaffe.tools.synthetic import steps_only

    if not (solver or net):
        return run(None, "", engines, out)
    work = _work(solver, net, shape)
    size = _batch_of(batch, work)[0] if batch else 0
    try:
        param = steps_only(solver or net, bool(solver), True, size, shape)
    except FcaffeError:  # the shape of records is known by reading them alone
        param = steps_only(solver or net, bool(solver), False, size, shape)
    return run(param, work.name, engines, out)


def _counts(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= 10_000_000 for word in words):
        raise UsageError(f"--workers takes positive numbers with commas between them, not '{text}'")
    return [int(word) for word in words]


def _check_range(flag: str, value: float | None, least: float = 0.0) -> None:
    if value is not None and not (max(least, 1e-300) <= value < math.inf):
        raise UsageError(f"{flag} must be {f'at least {least:g}' if least else 'above 0'}, not {value:g}")


def _machine_of(machine: str, device: str, between: str, within: str, **numbers: Any) -> Machine:
    """The machine of --machine, with the settings of the other flags. Raises UsageError."""
    if not machine and not device:
        raise UsageError(
            f"plan needs a machine: --machine {'|'.join(MACHINES)}, --machine FILE (which --calibrate writes for this "
            "one), or --device NAME with --between LINK"
        )
    for name, least in (("devices_per_node", 1), ("speed", 0), ("contention", 1)):
        _check_range(f"--{name.replace('_', '-')}", numbers[name], least)
    found = read_machine(machine) if machine else Machine(device, find(device, DEVICES, "device"))
    if machine and device:
        other = find(device, DEVICES, "device")
        found = replace(found, device=other, speeds={}, update_bandwidth=None)
    links = {"between": between, "within": within}
    settings = numbers | {name: parse_link(link, f"--{name}") for name, link in links.items() if link}
    return replace(found, **{name: value for name, value in settings.items() if value is not None})


def _batch_of(text: str, work: Work) -> tuple[int, bool]:
    """The samples that --batch says, and whether each worker has so many. Raises UsageError."""
    each = text == EACH or text.startswith(f"{EACH}:")
    number = text.removeprefix(EACH).removeprefix(":") if each else text
    if number and not number.isdecimal():
        raise UsageError(f"--batch takes a number, {EACH} or {EACH}:N, not '{text}'")
    samples = int(number) if number else work.batch
    if samples < 1:
        raise UsageError(f"--batch {text}: a batch has one sample or more")
    return samples, each
