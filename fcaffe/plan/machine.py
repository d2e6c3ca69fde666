"""Machine: the devices and links that a plan is for, and how fast they are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fcaffe.plan.devices import DEVICES, GEMINI, LINKS, Device, Link

TEXTBOOK, FCAFFE = "textbook", "fcaffe"


@dataclass(frozen=True)
class Machine:
    """What a plan is for. Where a speed is None, it costs nothing.

    `exchange` is `textbook`, the forms of books and of FireCaffe's paper: a tree sums whole buffers, the server is a
    process of its own, and without overlap all gradients are one sum. Or it is `fcaffe`, what its ranks do: a tree in
    segments, rank 0 serves, sums of buckets in any case.
    """

    name: str
    device: Device
    devices_per_node: int = 1  # ranks of a node
    within: Link = LINKS["memory"]  # between ranks of a node
    between: Link = LINKS["10GbE"]  # between nodes
    links_per_node: int = 1  # such links of each node
    contention: float = 1.0  # how many times slower these are while all nodes send
    exchange: str = TEXTBOOK
    speeds: Mapping[str, float] = field(default_factory=dict)  # images a second that a device trains, by the net's name
    speed: float | None = None  # the same, of any net
    cores: int | None = None  # of a node, all of which are the device, and which ranks share; None: a device each
    add_bandwidth: float | None = None  # bytes of a buffer that a rank adds to another in a second
    update_bandwidth: float | None = None  # bytes that the update reads and writes in a second; None: the device's
    read_images: float | None = None  # images a second that one worker can read
    read_images_in_all: float | None = None  # and all workers together
    source: str = "known to fcaffe"  # who says all that

    def nodes(self, workers: int) -> int:
        return math.ceil(workers / self.devices_per_node)

    def slowdown(self, workers: int) -> float:
        """How many times longer computing takes than on a rank that has all cores of its node. They are dealt out in
        whole numbers as long as there is one for each rank."""
        ranks = min(workers, self.devices_per_node)
        if not self.cores:
            return 1.0
        return self.cores / (self.cores // ranks) if ranks <= self.cores else float(ranks)

    def speed_of(self, net: str) -> float | None:
        """Images a second of one device, if that is known of the net of this name."""
        return self.speed or {plain(name): speed for name, speed in self.speeds.items()}.get(plain(net))


def plain(name: str) -> str:
    """A net's name in lower case, without punctuation, which differs between files."""
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
