"""Where each number of a plan comes from: its formula, its inputs, and who says these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fcaffe.plan.closed_forms import FORMS, TEXTS
from fcaffe.plan.machine import FCAFFE
from fcaffe.plan.prediction import Prediction, Row
from fcaffe.plan.rounds import Round


class Fact(NamedTuple):
    """A number of a plan: what it is, its value with a unit, and its formula or source."""

    name: str
    value: str
    by: str


def explain(prediction: Prediction, row: Row) -> list[Fact]:
    """All numbers that the row consists of, inputs first."""
    parts = (_inputs, _compute, _sums, _totals, _searches, _layers)
    return [Fact(*fact) for part in parts for fact in part(prediction, row)]


Facts = Iterator[tuple[str, str, str]]


def _inputs(prediction: Prediction, row: Row) -> Facts:
    asked, work, machine = prediction.question, prediction.question.work, prediction.question.machine
    device, volume = machine.device, work.volume
    yield "parameters", f"{work.parameters:,}", f"{work.path}, shapes of all blobs, shared ones once"
    yield "gradients", f"{work.gradient_bytes / 1e6:.3f} MB", "4 bytes each"
    products = "multiply-adds of convolutions and inner products (2 forward, 4 backward)"
    yield "operations of an image", f"{volume.flops / 1e9:.3f} GFLOP", f"6 x {products}"
    yield "weights, no biases", f"{volume.weights / 1e6:.3f} MB", "FireCaffe's equation (1)"
    inputs = "FireCaffe's equation (2): the inputs of convolutions and inner products"
    yield "activations of an image", f"{volume.data / 1e6:.3f} MB", inputs
    batch = f"{asked.batch:,} {'a worker' if asked.per_worker else 'in all'}"
    yield "batch", batch, f"--batch, or the prototxt's; iter_size {work.passes}"
    yield "device", device.name, f"machine {machine.name}: {machine.source}"
    yield "peak", f"{device.peak_of(asked.math) / 1e12:g} TFLOP/s in {asked.math}", device.source
    known = machine.speed_of(work.name)
    only = f"; only splits the known {known:g} images a second among the layers" if known else ""
    yield "efficiency", f"{device.efficiency:.0%} of the peak", device.efficiency_source + only
    yield "memory bandwidth", f"{device.memory_bandwidth / 1e9:g} GB/s", device.source
    for name, link in (("link within a node", machine.within), ("link between nodes", machine.between)):
        yield name, f"{link.name}: {1e6 * link.latency:.3g} us and {link.bandwidth / 1e9:.4g} GB/s", link.source
    nodes = f"{machine.devices_per_node} devices, {machine.links_per_node} links each"
    yield "nodes", nodes, f"machine {machine.name}; contention {machine.contention:g}"


def _compute(prediction: Prediction, row: Row) -> Facts:
    asked, machine = prediction.question, prediction.question.machine
    split = "the batch of each worker" if asked.per_worker else f"ceil({asked.batch:,} / {row.workers:,})"
    yield "share of a worker", f"{row.share:,} images", split
    yield "forward", _ms(sum(row.passes.forward)), row.passes.origin
    yield "backward", _ms(sum(row.passes.backward)), row.passes.origin
    if asked.spread:
        slowest = f"the slowest of {row.workers:,} normally spread workers (Blom)"
        yield "straggling", _ms(row.straggling), f"--stragglers {asked.spread:g}: {slowest}"
    if (slowdown := machine.slowdown(row.workers)) > 1:
        yield "slowdown", f"{slowdown:g}", f"the ranks of a node share its {machine.cores} cores"
    yield "compute", _ms(row.compute), f"{asked.work.passes} x (forward + backward)"


def _sums(prediction: Prediction, row: Row) -> Facts:
    if row.workers == 1:
        yield "sums", "none", "one worker has nobody to add to"
        return
    asked, machine = prediction.question, prediction.question.machine
    sizes = Counter(bucket.bytes for bucket in asked.cut(row.workers))
    rule = "a quarter of the gradients, but 128 KiB for each rank, and at most 4 MiB; large layers in parts"
    yield "buckets", f"{sizes.total()}", "--bucket-mb" if asked.bucket else f"fcaffe's rule: {rule}"
    segmented = row.reduce == "tree" and machine.exchange == FCAFFE
    yield "formula", row.reduce, TEXTS["segmented-tree" if segmented else row.reduce]
    for size, count in sizes.items():
        cost = prediction.sum(row.reduce, row.workers, size)
        yield f"{count} x sum of {size:,} bytes", _ms(cost.seconds), "; ".join(map(_round, cost.rounds))
    if row.reduce in FORMS and machine.nodes(row.workers) in (1, row.workers):
        link = machine.within if machine.nodes(row.workers) == 1 else machine.between
        numbers = link.latency, 1 / link.bandwidth, 1 / machine.add_bandwidth if machine.add_bandwidth else 0.0
        known = sum(count * FORMS[row.reduce](size, row.workers, *numbers) for size, count in sizes.items())
        yield "sums by the closed form", _ms(known), "whole buffers, all links alike, no contention"
    yield "communication", _ms(row.communication), "all sums, hidden behind forward and backward or not"


def _round(part: Round) -> str:
    added = f", {part.added:,.0f} bytes added" if part.added else ""
    streams = f", link shared by {part.streams:g}" if part.streams > 1 else ""
    return f"{part.count:g} x {part.bytes:,.0f} bytes over {part.link.name}{streams}{added}"


def _totals(prediction: Prediction, row: Row) -> Facts:
    asked, machine = prediction.question, prediction.question.machine
    overlap = "sums after backward"
    if prediction.overlaps(row.workers):
        overlap = "a sum begins when its bucket is final and those before are summed"
    if prediction.updates_late(row.workers):
        overlap += "; a layer waits for the sums and the update that it needs at its next forward"
    yield "exposed communication", _ms(row.exposed), f"end of the iteration - computing alone; {overlap}"
    rate = machine.update_bandwidth or machine.device.memory_bandwidth
    update = f"{prediction.update_bytes / 1e6:.1f} MB that the rule reads and writes at {rate / 1e9:g} GB/s"
    yield "update", _ms(row.update), update if row.update else "within the known speed of the net"
    yield "data", _ms(row.data), f"reading takes {_ms(prediction.reading(row.workers))}, beside everything else"
    yield "iteration", _ms(row.seconds), "compute + exposed communication + data + update"
    yield "images a second", f"{row.images_per_second:,.1f}", f"{row.batch:,} images / iteration"
    yield "speedup", f"{row.speedup:.2f}", "images a second / those of one worker of the same machine"
    yield "efficiency", f"{row.efficiency:.1%}", f"speedup / {row.workers:,}"
    if (hours := prediction.hours(row)) is not None:
        given = asked.epochs is not None and asked.images is not None
        how = f"{asked.epochs:g} epochs x {asked.images:,} images" if given else f"max_iter {asked.work.iterations:,}"
        yield "hours", f"{hours:.3f}", how
    words = {
        "weights": "4 bytes a parameter",
        "gradients": "as many",
        "histories": f"{asked.work.histories} of the solver's rule",
        "activations": f"{asked.work.activations / 1e6:.2f} MB an image at the peak of fcaffe's memory plan",
        "total": f"the device has {machine.device.memory / 1e9:g} GB",
    }
    for name, bytes_ in prediction.memory(row.share).items():
        yield f"memory: {name}", f"{bytes_ / 1e9:.3f} GB", words[name]


def _searches(prediction: Prediction, row: Row) -> Facts:
    batch = prediction.batch_for(row.workers, row.reduce)
    words = "the smallest of all workers, in equal shares, with that efficiency against one worker with all of it"
    yield f"batch for {prediction.question.wanted:.0%}", "none" if batch is None else f"{batch:,}", words
    crossing = prediction.crossover(row.reduce)
    words = "the smallest number of workers, by bisection, whose sums take longer, hidden or not, than their computing"
    yield "communication > compute", "none" if crossing is None else f"{crossing:,}", words


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
