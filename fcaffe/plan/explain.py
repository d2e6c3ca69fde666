"""Where each number of a plan comes from: its formula, its inputs, and who says these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from fcaffe.plan.closed_forms import FORMS, TEXTS
from fcaffe.plan.devices import Link
from fcaffe.plan.plan import Plan, Row
from fcaffe.plan.rounds import Round


@dataclass(frozen=True)
class Fact:
    """A number of a plan: what it is, its value with a unit, and how it was come by."""

    name: str
    value: str
    by: str


def explain(plan: Plan, row: Row) -> list[Fact]:
    """All that the row is made of, inputs first."""
    facts = [*_net(plan), *_machine(plan), *_compute(plan, row), *_sums(plan, row), *_totals(plan, row)]
    return [*facts, *_memory(plan, row), *_searches(plan, row), *_layers(plan, row)]


def as_json(facts: list[Fact]) -> list[dict[str, str]]:
    return [asdict(fact) for fact in facts]


def _net(plan: Plan) -> Iterator[Fact]:
    work, asked = plan.question.work, plan.question
    yield Fact("parameters", f"{work.parameters:,}", f"{work.path}, shapes of all blobs, shared ones once")
    yield Fact("gradients", f"{work.gradient_bytes / 1e6:.3f} MB", "4 bytes each")
    yield Fact(
        "operations of an image",
        f"{work.volume.flops / 1e9:.3f} GFLOP",
        "6 x multiply-adds of convolutions and inner products (2 forward, 4 backward)",
    )
    yield Fact("weights, no biases", f"{work.volume.weights / 1e6:.3f} MB", "FireCaffe's equation (1)")
    yield Fact(
        "activations of an image",
        f"{work.volume.data / 1e6:.3f} MB",
        "FireCaffe's equation (2): the inputs of convolutions and inner products",
    )
    yield Fact(
        "batch",
        f"{asked.batch:,} {'a worker' if asked.per_worker else 'in all'}",
        f"--batch, or the prototxt's; iter_size {work.passes}",
    )


def _machine(plan: Plan) -> Iterator[Fact]:
    machine = plan.question.machine
    device, math = machine.device, plan.question.math
    yield Fact("device", device.name, f"machine {machine.name}: {machine.source}")
    yield Fact("peak", f"{device.peak_of(math) / 1e12:g} TFLOP/s in {math}", device.source)
    known = machine.speed_of(plan.question.work.name)
    only = f"; only splits the known {known:g} images a second among the layers" if known else ""
    yield Fact("efficiency", f"{device.efficiency:.0%} of the peak", device.efficiency_source + only)
    yield Fact("memory bandwidth", f"{device.memory_bandwidth / 1e9:g} GB/s", device.source)
    for name, link in (("link within a node", machine.within), ("link between nodes", machine.between)):
        yield Fact(name, _link(link), link.source)
    yield Fact(
        "nodes",
        f"{machine.devices_per_node} devices, {machine.links_per_node} links each",
        f"machine {machine.name}; contention {machine.contention:g}",
    )


def _link(link: Link) -> str:
    return f"{link.name}: {1e6 * link.latency:.3g} us and {link.bandwidth / 1e9:.4g} GB/s"


def _compute(plan: Plan, row: Row) -> Iterator[Fact]:
    asked, machine = plan.question, plan.question.machine
    yield Fact(
        "share of a worker",
        f"{row.share:,} images",
        "the batch of each worker" if asked.per_worker else f"ceil({asked.batch:,} / {row.workers:,})",
    )
    yield Fact("forward", _ms(sum(row.passes.forward)), row.passes.origin)
    yield Fact("backward", _ms(sum(row.passes.backward)), row.passes.origin)
    if asked.spread:
        yield Fact(
            "straggling",
            _ms(row.straggling),
            f"--stragglers {asked.spread:g}: the slowest of {row.workers:,} normally spread workers (Blom)",
        )
    if (crowding := machine.crowding(row.workers)) > 1:
        yield Fact("crowding", f"{crowding:g}", f"{machine.ranks_at_once(row.workers)} ranks on {machine.cores} cores")
    yield Fact(
        "compute",
        _ms(row.compute),
        f"{asked.work.passes} x (forward + backward) + {_ms(plan.rest(row.workers))} of each iteration",
    )


def _sums(plan: Plan, row: Row) -> Iterator[Fact]:
    if row.workers == 1:
        yield Fact("sums", "none", "one worker has nobody to add to")
        return
    machine = plan.question.machine
    cut = plan.question.cut(row.workers)
    sizes = Counter(bucket.bytes for bucket in cut)
    rule = (
        "fcaffe's rule: a quarter of the gradients, but 128 KiB for each rank, and at most 4 MiB; large layers in parts"
    )
    if plan.question.bucket:
        rule = "--bucket-mb"
    yield Fact("buckets", f"{len(cut)}", rule if len(cut) > 1 else "one sum of all gradients")
    yield Fact("formula", row.reduce, TEXTS[_formula(plan, row)])
    if machine.cpu_per_message or machine.cpu_per_byte:
        yield Fact(
            "cores for messages",
            f"{1e6 * machine.cpu_per_message:.3g} us and {1e9 * machine.cpu_per_byte:.3g} ns a byte",
            f"of a core at either end of a message between nodes: {machine.source}; messages that more ranks handle at "
            "once than there are cores take that much longer, and what they take is missing in computing",
        )
    each = ""
    if own := plan.per_sum(row.workers):
        each = ", and what a sum takes beside"
        yield Fact(
            "a sum beside messages",
            f"{_ms(own)} of a core",
            f"what a training of several ranks takes more of cores: {machine.source}; crowding "
            f"{machine.crowding(row.workers):g}",
        )
    for number, (size, count) in enumerate(sizes.items()):
        cost = plan.sum(row.reduce, row.workers, size)
        words = "; ".join(map(_round, cost.rounds)) if not number else "likewise"
        yield Fact(f"{count} x sum of {size:,} bytes", _ms(cost.seconds), words + each)
    form = FORMS.get(row.reduce)
    if form and machine.nodes(row.workers) in (1, row.workers):
        link = machine.within if machine.nodes(row.workers) == 1 else machine.between
        gamma = 1 / machine.add_bandwidth if machine.add_bandwidth else 0.0
        known = sum(
            count * form(size, row.workers, link.latency, 1 / link.bandwidth, gamma) for size, count in sizes.items()
        )
        yield Fact(
            "sums by the closed form", _ms(known), "the formula of whole buffers, all links alike, no contention"
        )
    yield Fact("communication", _ms(row.communication), "all sums, hidden behind forward and backward or not")


def _formula(plan: Plan, row: Row) -> str:
    return "segmented-tree" if row.reduce == "tree" and plan.question.machine.exchange == "fcaffe" else row.reduce


def _round(part: Round) -> str:
    extra = f", {part.added:,.0f} bytes added" if part.added else ""
    streams = f", link shared by {part.streams:g}" if part.streams > 1 else ""
    return f"{part.count:g} x {part.bytes:,.0f} bytes over {part.link.name}{streams}{extra}"


def _totals(plan: Plan, row: Row) -> Iterator[Fact]:
    asked, machine = plan.question, plan.question.machine
    yield Fact(
        "exposed communication", _ms(row.exposed), f"end of the iteration - computing alone; {_overlap(plan, row)}"
    )
    rate = machine.update_bandwidth or machine.device.memory_bandwidth
    update = f"{plan.update_bytes / 1e6:.1f} MB that the rule reads and writes at {rate / 1e9:g} GB/s"
    if (found := machine.measured_for(asked.work.name, machine.ranks_at_once(row.workers))) and found.update:
        update = f"measured with the layers, {found.ranks} ranks at once"
    yield Fact("update", _ms(row.update), update if row.update else "within the known speed of the net")
    yield Fact("data", _ms(row.data), f"reading takes {_ms(plan.reading(row.workers))}, beside everything else")
    yield Fact("iteration", _ms(row.seconds), "compute + exposed communication + data + update")
    yield Fact("images a second", f"{row.images_per_second:,.1f}", f"{row.batch:,} images / iteration")
    yield Fact("speedup", f"{row.speedup:.2f}", "images a second / those of one worker of the same machine")
    yield Fact("efficiency", f"{row.efficiency:.1%}", f"speedup / {row.workers:,}")
    if (hours := plan.hours(row)) is not None:
        given = asked.epochs is not None and asked.images is not None
        how = f"{asked.epochs:g} epochs x {asked.images:,} images" if given else f"max_iter {asked.work.iterations:,}"
        yield Fact("hours", f"{hours:.3f}", how)


def _overlap(plan: Plan, row: Row) -> str:
    """How sums and computing share an iteration."""
    if not plan.overlaps(row.workers):
        return "sums after backward"
    one = "events: a sum begins when its bucket is final and those before are through"
    if not plan.updates_late(row.workers):
        return one
    late = "that of the first layers overtakes those that wait; the update of a layer, and the wait for what it needs"
    return f"{one}; {late}, come before its next forward"


def _memory(plan: Plan, row: Row) -> Iterator[Fact]:
    need = plan.memory(row.share)
    words = {
        "weights": "4 bytes a parameter",
        "gradients": "as many",
        "histories": f"{plan.question.work.histories} of the solver's rule",
        "activations": f"{plan.question.work.activations / 1e6:.2f} MB an image at the peak of fcaffe's memory plan",
        "total": f"the device has {plan.question.machine.device.memory / 1e9:g} GB",
    }
    for name, word in words.items():
        yield Fact(f"memory: {name}", f"{need[name] / 1e9:.3f} GB", word)


def _searches(plan: Plan, row: Row) -> Iterator[Fact]:
    found = {
        f"batch for {plan.question.wanted:.0%}": (
            plan.batch_for(row.workers, row.reduce),
            "the smallest of all workers, in equal shares, with that efficiency against one worker with all of it",
        ),
        "communication > compute": (
            plan.crossover(row.reduce),
            "the smallest number of workers, by bisection, whose sums take longer, hidden or not, than their computing",
        ),
    }
    for name, (number, words) in found.items():
        yield Fact(name, "none" if number is None else f"{number:,}", words)


def _layers(plan: Plan, row: Row) -> Iterator[Fact]:
    """Each layer that takes time."""
    for layer, forward, backward in zip(
        plan.question.work.layers, row.passes.forward, row.passes.backward, strict=True
    ):
        if forward or backward:
            flops = [row.share * part[0] / 1e6 for part in (layer.forward, layer.backward)]
            ways = ((layer.forward, 1), (layer.backward, 2))  # backward reads parameters and writes their gradients
            moved = [(row.share * part[1] + times * layer.parameter_bytes) / 1e6 for part, times in ways]
            yield Fact(
                f"layer {layer.name}",
                f"{1e3 * forward:.4f} + {1e3 * backward:.4f} ms",
                f"{flops[0]:,.1f} MFLOP and {moved[0]:,.2f} MB forward, {flops[1]:,.1f} and {moved[1]:,.2f} backward",
            )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"
