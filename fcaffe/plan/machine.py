"""The machine that a plan is for: its devices, its links, and what was measured on it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fcaffe.plan.devices import DEVICES, GEMINI, LINKS, Device, Link

TEXTBOOK, FCAFFE = "textbook", "fcaffe"


@dataclass(frozen=True)
class MeasuredNet:
    """The seconds of one net's layers on a rank, while `ranks` ranks shared the cores of its host.

    `layers` maps a layer to (forward, backward) for each of `batches`; what lies between and beyond is a straight line:
    a fixed cost and one for each sample. `update`: of all parameters, if that was measured; `rest`: of an iteration,
    what is neither that nor layers; `per_sum`: seconds of a core that a rank takes for each sum of gradients beside its
    messages and additions, to hand it over, to wait for the others and to bring its memory back into the caches.
    """

    net: str
    ranks: int
    batches: Sequence[int]
    layers: Mapping[str, Sequence[tuple[float, float]]]
    update: float | None = None
    rest: float = 0.0
    per_sum: float = 0.0

    def seconds(self, layer: str, samples: float) -> tuple[float, float]:
        """Forward and backward of so many samples; nothing for a layer that was not there."""
        measured = self.layers.get(layer)
        if measured is None:
            return 0.0, 0.0
        forward, backward = (line(self.batches, [pair[way] for pair in measured], samples) for way in (0, 1))
        return forward, backward


@dataclass(frozen=True)
class Measured:
    """What is known of a net on a rank from measurements by one number of ranks, or by two, between which it lies on a
    straight line. `parts`: each with its weight, and by how much a rank of it had more of the cores than now."""

    parts: Sequence[tuple[MeasuredNet, float, float]]

    def seconds(self, layer: str, samples: float) -> tuple[float, float]:
        """Forward and backward of so many samples."""
        made = [(weight * factor, net.seconds(layer, samples)) for net, weight, factor in self.parts]
        return sum(share * pair[0] for share, pair in made), sum(share * pair[1] for share, pair in made)

    @property
    def update(self) -> float | None:
        """Seconds; None if it was not measured."""
        known = [(weight * factor, net.update) for net, weight, factor in self.parts if net.update is not None]
        return sum(share * update for share, update in known) if len(known) == len(self.parts) else None

    @property
    def rest(self) -> float:
        return sum(weight * factor * net.rest for net, weight, factor in self.parts)

    @property
    def per_sum(self) -> float:
        return sum(weight * net.per_sum for net, weight, _ in self.parts)

    @property
    def ranks(self) -> str:
        """How many measured at once."""
        return " and ".join(str(net.ranks) for net, _, _ in self.parts)

    @property
    def batches(self) -> str:
        return ", ".join(str(batch) for batch in sorted({batch for net, _, _ in self.parts for batch in net.batches}))


def line(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value there, on straight lines between the places (ascending); from the last two on beyond them, never
    below 0, and in proportion if there is one place only."""
    if len(places) == 1:
        return values[0] * at / places[0]
    right = next((index for index in range(1, len(places)) if at <= places[index]), len(places) - 1)
    slope = (values[right] - values[right - 1]) / (places[right] - places[right - 1])
    return max(0.0, values[right] + max(0.0, slope) * (at - places[right]))


@dataclass(frozen=True)
class Machine:
    """`devices_per_node` ranks of a node talk over `within`, nodes over `between`, of which each node has
    `links_per_node`; where all nodes send across the network at once, each gets 1 / `contention` of that.

    `exchange`: `textbook`, the forms of books and of FireCaffe's paper (a tree sums whole buffers, the server is a
    process of its own, and without overlap all gradients are one sum); or `fcaffe`, what its ranks do (a tree in
    segments, rank 0 serves, sums of buckets in any case).

    `speeds`: images a second of one device, by the net's name, update included; `speed`: of whichever net is planned
    for. `measured`: nets' layers. `cores`: of
    a node, which its ranks share; with `nodes_share_cores` all ranks of all nodes do, as on an emulated cluster.
    `cpu_per_message` and `cpu_per_byte`: seconds of a core at either end of a message. `add_bandwidth`: bytes of a
    buffer that are added to another in a second. `update_bandwidth`: bytes of weights, gradients and histories that
    the update goes over in a second (None: the device's memory's). `read_images`, `read_images_in_all`: images a
    second that a worker, and all together, can read. None means that it costs nothing.
    """

    name: str
    device: Device
    devices_per_node: int = 1
    within: Link = LINKS["memory"]
    between: Link = LINKS["10GbE"]
    links_per_node: int = 1
    contention: float = 1.0
    exchange: str = TEXTBOOK
    speeds: Mapping[str, float] = field(default_factory=dict)
    speed: float | None = None
    measured: Sequence[MeasuredNet] = ()
    cores: int | None = None
    nodes_share_cores: bool = False
    cpu_per_message: float = 0.0
    cpu_per_byte: float = 0.0
    add_bandwidth: float | None = None
    update_bandwidth: float | None = None
    iteration_seconds: float = 0.0
    read_images: float | None = None
    read_images_in_all: float | None = None
    source: str = "known to fcaffe"

    def nodes(self, workers: int) -> int:
        return math.ceil(workers / self.devices_per_node)

    def ranks_at_once(self, workers: int) -> int:
        """How many ranks share the cores of a host."""
        return workers if self.nodes_share_cores else min(workers, self.devices_per_node)

    def crowding(self, workers: int) -> float:
        """By how much what takes one core takes longer, since ranks outnumber cores; 1 where they do not."""
        return max(1.0, self.ranks_at_once(workers) / self.cores) if self.cores else 1.0

    def speed_of(self, net: str) -> float | None:
        """Images a second of one device, if that is known of the net of this name."""
        return self.speed or {plain(name): speed for name, speed in self.speeds.items()}.get(plain(net))

    def measured_for(self, net: str, ranks: int) -> Measured | None:
        """The net as measured by so many ranks at once, or by the next smaller and the next larger number, or by the
        nearest. Cores are shared out in whole numbers as long as there is one for each rank."""
        fitting = sorted((one for one in self.measured if plain(one.net) == plain(net)), key=lambda one: one.ranks)
        if not fitting or self.speed:
            return None
        low = max((one for one in fitting if one.ranks <= ranks), key=lambda one: one.ranks, default=fitting[0])
        high = min((one for one in fitting if one.ranks >= ranks), key=lambda one: one.ranks, default=fitting[-1])
        share = (ranks - low.ranks) / (high.ranks - low.ranks) if low.ranks < ranks < high.ranks else 0.0
        weights = [(low, 1.0 - share), (high, share)] if share else [(low if ranks >= low.ranks else high, 1.0)]
        now = self._cores_of_rank(ranks)
        return Measured([(one, weight, self._cores_of_rank(one.ranks) / now) for one, weight in weights])

    def _cores_of_rank(self, ranks: int) -> float:
        if not self.cores:
            return 1.0
        return float(self.cores // ranks) if ranks <= self.cores else self.cores / ranks


def plain(name: str) -> str:
    """A net's name without what one file writes otherwise than another."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


TITAN = Machine(
    "titan",
    replace(DEVICES["K20"], layer_seconds=0.0),
    between=GEMINI,
    within=LINKS["PCIe3"],
    # 47 epochs in 5.8 days and 64 in 21, of 1,281,167 images each: the paper's rows of one GPU
    speeds={"nin_imagenet": 120.2, "nin": 120.2, "googlenet": 45.2},
    source="FireCaffe's paper (one K20 a node; Gemini)",
)

MACHINES = {
    machine.name: machine
    for machine in (
        TITAN,
        Machine("k80", DEVICES["K80"], 16, LINKS["PCIe3"], LINKS["10GbE"]),
        Machine("p100", DEVICES["P100"], 8, LINKS["NVLink1"], LINKS["EDR"], links_per_node=4),
        Machine("v100", DEVICES["V100"], 8, LINKS["NVLink2"], LINKS["EDR"], links_per_node=4),
        Machine("a100", DEVICES["A100"], 8, LINKS["NVLink3"], LINKS["HDR"], links_per_node=8),
        Machine("h100", DEVICES["H100"], 8, LINKS["NVLink4"], LINKS["NDR"], links_per_node=8),
        Machine("h200", DEVICES["H200"], 8, LINKS["NVLink4"], LINKS["NDR"], links_per_node=8),
        Machine("xeon", DEVICES["Xeon-8380"], 2, LINKS["memory"], LINKS["25GbE"]),
    )
}


def is_file(name: str) -> bool:
    return os.path.exists(name) or name.endswith(".json") or os.sep in name


def with_settings(machine: Machine, **settings: Any) -> Machine:
    """The machine with those of the settings that are not None."""
    return replace(machine, **{name: value for name, value in settings.items() if value is not None})
