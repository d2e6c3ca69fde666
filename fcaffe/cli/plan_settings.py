"""What the flags of `fcaffe plan` say of the machine and of the batch."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.errors import UsageError
from fcaffe.plan.devices import DEVICES, find
from fcaffe.plan.machine import MACHINES, Machine, with_settings
from fcaffe.plan.machine_file import parse_link, read_machine
from fcaffe.plan.work import Work

EACH = "per-worker"


def machine_of(
    machine: str,
    device: str,
    devices_per_node: int | None,
    between: str,
    within: str,
    speed: float | None,
    contention: float | None,
) -> Machine:
    """The machine of --machine, with what the other flags say in its place. Raises UsageError."""
    if not machine and not device:
        raise UsageError(
            f"plan needs a machine: --machine {'|'.join(MACHINES)}, --machine FILE (which --calibrate writes for this "
            "one), or --device NAME with --between LINK"
        )
    if devices_per_node is not None and devices_per_node < 1:
        raise UsageError(f"--devices-per-node must be 1 or more, not {devices_per_node}")
    for flag, value, least in (("--speed", speed, 0.0), ("--contention", contention, 1.0)):
        if value is not None and not (value >= least and value > 0):
            raise UsageError(f"{flag} must be {'above 0' if not least else 'at least 1'}, not {value:g}")
    made = read_machine(machine) if machine else Machine(device, find(device, DEVICES, "device"))
    if machine and device:
        other = find(device, DEVICES, "device")
        made = replace(made, device=other, speeds={}, measured=(), update_bandwidth=None)
    return with_settings(
        made,
        devices_per_node=devices_per_node,
        between=parse_link(between, "--between") if between else None,
        within=parse_link(within, "--within") if within else None,
        contention=contention,
        speed=speed,
    )


def share_of(batch: str, work: Work) -> tuple[int, bool]:
    """How many samples --batch says, and whether each worker takes them. Raises UsageError."""
    words = batch.split(":") if batch.startswith(EACH) else [batch]
    size = words[-1] if words[-1] != EACH else ""
    if len(words) > 2 or words[0].removeprefix(EACH) not in ("", size) or not (size or "1").isdecimal():
        raise UsageError(f"--batch takes a number, {EACH} or {EACH}:N, not '{batch}'")
    samples = int(size) if size else work.batch
    if samples < 1:
        raise UsageError(f"--batch {batch}: a batch has one sample or more")
    return samples, words[0] == EACH
