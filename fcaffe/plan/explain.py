"""Explains each number of a prediction: its formula, its inputs, and their sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fcaffe.plan.prediction import Prediction, Row
from fcaffe.plan.reductions import REDUCTIONS, Round, sum_of


class Fact(NamedTuple):
    """A number of a plan: what it is, its value with a unit, and its formula or source."""

    name: str
    value: str
    by: str


Facts = Iterator[tuple[str, str, str]]


def explain(prediction: Prediction, row: Row) -> list[Fact]:
    """All numbers that the row consists of, inputs first."""
    return [Fact(*fact) for part in (_inputs, _sums, _totals, _layers) for fact in part(prediction, row)]


def _inputs(prediction: Prediction, row: Row) -> Facts:
    work, machine = prediction.work_on(row.workers), prediction.machine
    device = machine.device
    yield "gradients", f"{work.gradient_bytes / 1e6:.3f} MB", f"4 bytes for each of {work.parameters:,} parameters"
    yield "device", device.name, f"machine {machine.name}: {machine.source}"
    yield "peak", f"{device.peak_of(prediction.math) / 1e12:g} TFLOP/s in {prediction.math}", device.source
    known = machine.speed_of(work.name)
    only = f"; only splits the known {known:g} images a second among the layers" if known else ""
    yield "efficiency of the device", f"{device.efficiency:.0%} of the peak", device.efficiency_source + only
    yield "memory bandwidth", f"{device.memory_bandwidth / 1e9:g} GB/s", device.source
    for name, link in (("link within a node", machine.within), ("link between nodes", machine.between)):
        yield name, f"{link.name}: {1e6 * link.latency:.3g} us and {link.bandwidth / 1e9:.4g} GB/s", link.source
    nodes = f"{machine.devices_per_node} devices, {machine.links_per_node} links each"
    yield "nodes", nodes, f"machine {machine.name}"
    split = "the batch of each worker" if prediction.per_worker else f"ceil({prediction.batch:,} / {row.workers:,})"
    yield "share of a worker", f"{row.share:,} images", split
    cores = f"; ranks share cores, {machine.slowdown(row.workers):g} times slower" if machine.cores else ""
    for name, seconds in (("forward", row.passes.forward), ("backward", row.passes.backward)):
        yield name, _ms(sum(seconds)), row.passes.origin + cores
    yield "compute", _ms(row.compute), f"{work.passes} x (forward + backward)"


def _sums(prediction: Prediction, row: Row) -> Facts:
    if row.workers == 1:
        yield "sums", "none", "one worker has nobody to add to"
        return
    sizes = Counter(bucket.bytes for bucket in prediction.cut(row.workers))
    rule = "a quarter of the gradients, but 128 KiB for each rank, and at most 4 MiB; large layers in parts"
    yield "buckets", f"{sizes.total()}", "--bucket-mb" if prediction.bucket else f"fcaffe's rule: {rule}"
    yield "formula", row.reduce, " ".join((REDUCTIONS[row.reduce].__doc__ or "").split())
    for size, count in sizes.items():
        cost = sum_of(row.reduce, prediction.machine, row.workers, size)
        yield f"{count} x sum of {size:,} bytes", _ms(cost.seconds), "; ".join(map(_round, cost.rounds))
    for moved in prediction.work_on(row.workers).blobs:
        cost = sum_of("ring", prediction.machine, row.workers, moved)
        yield "blobs of a layer with split weights", _ms(cost.seconds), "; ".join(map(_round, cost.rounds))
    yield "communication", _ms(row.communication), "all sums, hidden behind forward and backward or not"


def _round(part: Round) -> str:
    added = f", {part.added:,.0f} bytes added" if part.added else ""
    streams = f", link shared by {part.streams:g}" if part.streams > 1 else ""
    return f"{part.count:g} x {part.bytes:,.0f} bytes over {part.link.name}{streams}{added}"


def _totals(prediction: Prediction, row: Row) -> Facts:
    work = prediction.work_on(row.workers)
    overlap = "a sum begins when its bucket is final and those before are summed"
    if not prediction.overlaps(row.workers):
        overlap = "sums after backward"
    yield "exposed communication", _ms(row.exposed), f"end of the iteration - computing alone; {overlap}"
    rate = f"{prediction.update_rate / 1e9:g} GB/s"
    update = f"{prediction.update_bytes(row.workers) / 1e6:.1f} MB that the rule reads and writes at {rate}"
    yield "update", _ms(row.update), update if row.update else "within the known speed of the net"
    yield "data", _ms(row.data), f"reading takes {_ms(prediction.reading(row.workers))}, beside everything else"
    yield "iteration", _ms(row.seconds), "compute + exposed communication + data + update"
    yield "speedup", f"{row.speedup:.2f}", f"{row.images_per_second:,.1f} images a second / those of one worker"
    yield "efficiency", f"{row.efficiency:.1%}", f"speedup / {row.workers:,}"
    if (hours := prediction.hours(row)) is not None:
        epochs = f"{prediction.epochs:g} epochs x {prediction.images:,} images" if prediction.epochs else ""
        yield "hours", f"{hours:.3f}", epochs or f"max_iter {work.iterations:,}"
    yield (
        "memory",
        f"{prediction.memory(row)['total'] / 1e9:.3f} GB",
        f"{2 + work.histories} x {work.parameter_bytes / 1e9:.3f} GB of weights, gradients and histories; "
        f"{work.activations / 1e6:.2f} MB an image at the peak of fcaffe's memory plan",
    )


def _layers(prediction: Prediction, row: Row) -> Facts:
    """Each layer that takes time. Backward reads parameters and writes their gradients."""
    times = zip(row.passes.forward, row.passes.backward, strict=True)
    for layer, (forward, backward) in zip(prediction.work.layers, times, strict=True):
        if forward or backward:
            ways = ((layer.forward, 1), (layer.backward, 2))
            flops = [row.share * part[0] / 1e6 for part, _ in ways]
            moved = [(row.share * part[1] + number * layer.parameter_bytes) / 1e6 for part, number in ways]
            work = f"{flops[0]:,.1f} MFLOP and {moved[0]:,.2f} MB forward, {flops[1]:,.1f} and {moved[1]:,.2f} backward"
            yield f"layer {layer.name}", f"{1e3 * forward:.4f} + {1e3 * backward:.4f} ms", work


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"
