"""Where each number of a plan comes from: its formula, its inputs, and who says these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fcaffe.plan.prediction import Prediction, Row
from fcaffe.plan.reductions import REDUCTIONS, Round


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
    asked, work, machine = prediction.question, prediction.question.work, prediction.question.machine
    device = machine.device
    yield "gradients", f"{work.gradient_bytes / 1e6:.3f} MB", f"4 bytes for each of {work.parameters:,} parameters"
    yield "device", device.name, f"machine {machine.name}: {machine.source}"
    yield "peak", f"{device.peak_of(asked.math) / 1e12:g} TFLOP/s in {asked.math}", device.source
    known = machine.speed_of(work.name)
    only = f"; only splits the known {known:g} images a second among the layers" if known else ""
    yield "efficiency of the device", f"{device.efficiency:.0%} of the peak", device.efficiency_source + only
    yield "memory bandwidth", f"{device.memory_bandwidth / 1e9:g} GB/s", device.source
    for name, link in (("link within a node", machine.within), ("link between nodes", machine.between)):
        yield name, f"{link.name}: {1e6 * link.latency:.3g} us and {link.bandwidth / 1e9:.4g} GB/s", link.source
    nodes = f"{machine.devices_per_node} devices, {machine.links_per_node} links each"
    yield "nodes", nodes, f"machine {machine.name}; contention {machine.contention:g}"
    split = "the batch of each worker" if asked.per_worker else f"ceil({asked.batch:,} / {row.workers:,})"
    yield "share of a worker", f"{row.share:,} images", split
    cores = f"; ranks share cores, {machine.slowdown(row.workers):g} times slower" if machine.cores else ""
    for name, seconds in (("forward", row.passes.forward), ("backward", row.passes.backward)):
        yield name, _ms(sum(seconds)), row.passes.origin + cores
    yield "compute", _ms(row.compute), f"{asked.work.passes} x (forward + backward)"


def _sums(prediction: Prediction, row: Row) -> Facts:
    if row.workers == 1:
        yield "sums", "none", "one worker has nobody to add to"
        return
    asked = prediction.question
    sizes = Counter(bucket.bytes for bucket in asked.cut(row.workers))
    rule = "a quarter of the gradients, but 128 KiB for each rank, and at most 4 MiB; large layers in parts"
    yield "buckets", f"{sizes.total()}", "--bucket-mb" if asked.bucket else f"fcaffe's rule: {rule}"
    yield "formula", row.reduce, " ".join((REDUCTIONS[row.reduce].__doc__ or "").split())
    for size, count in sizes.items():
        cost = prediction.sum(row.reduce, row.workers, size)
        yield f"{count} x sum of {size:,} bytes", _ms(cost.seconds), "; ".join(map(_round, cost.rounds))
    yield "communication", _ms(row.communication), "all sums, hidden behind forward and backward or not"


def _round(part: Round) -> str:
    added = f", {part.added:,.0f} bytes added" if part.added else ""
    streams = f", link shared by {part.streams:g}" if part.streams > 1 else ""
    return f"{part.count:g} x {part.bytes:,.0f} bytes over {part.link.name}{streams}{added}"


def _totals(prediction: Prediction, row: Row) -> Facts:
    asked, machine = prediction.question, prediction.question.machine
    overlap = "a sum begins when its bucket is final and those before are summed"
    if not prediction.overlaps(row.workers):
        overlap = "sums after backward"
    yield "exposed communication", _ms(row.exposed), f"end of the iteration - computing alone; {overlap}"
    rate = machine.update_bandwidth or machine.device.memory_bandwidth
    update = f"{prediction.update_bytes / 1e6:.1f} MB that the rule reads and writes at {rate / 1e9:g} GB/s"
    yield "update", _ms(row.update), update if row.update else "within the known speed of the net"
    yield "data", _ms(row.data), f"reading takes {_ms(prediction.reading(row.workers))}, beside everything else"
    yield "iteration", _ms(row.seconds), "compute + exposed communication + data + update"
    yield "speedup", f"{row.speedup:.2f}", f"{row.images_per_second:,.1f} images a second / those of one worker"
    yield "efficiency", f"{row.efficiency:.1%}", f"speedup / {row.workers:,}"
    if (hours := prediction.hours(row)) is not None:
        epochs = f"{asked.epochs:g} epochs x {asked.images:,} images" if asked.epochs else ""
        yield "hours", f"{hours:.3f}", epochs or f"max_iter {asked.work.iterations:,}"
    yield (
        "memory",
        f"{prediction.memory(row.share)['total'] / 1e9:.3f} GB",
        f"{2 + asked.work.histories} x {asked.work.gradient_bytes / 1e9:.3f} GB of weights, gradients and histories; "
        f"{asked.work.activations / 1e6:.2f} MB an image at the peak of fcaffe's memory plan",
    )


def _layers(prediction: Prediction, row: Row) -> Facts:
    """Each layer that takes time. Backward reads parameters and writes their gradients."""
    times = zip(row.passes.forward, row.passes.backward, strict=True)
    for layer, (forward, backward) in zip(prediction.question.work.layers, times, strict=True):
        if forward or backward:
            ways = ((layer.forward, 1), (layer.backward, 2))
            flops = [row.share * part[0] / 1e6 for part, _ in ways]
            moved = [(row.share * part[1] + number * layer.parameter_bytes) / 1e6 for part, number in ways]
            work = f"{flops[0]:,.1f} MFLOP and {moved[0]:,.2f} MB forward, {flops[1]:,.1f} and {moved[1]:,.2f} backward"
            yield f"layer {layer.name}", f"{1e3 * forward:.4f} + {1e3 * backward:.4f} ms", work


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"
