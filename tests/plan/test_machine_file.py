"""Machines in files: what they may say."""

from __future__ import annotations

import pytest

from fcaffe.errors import UsageError
from fcaffe.plan.machine import DEVICES, LINKS, MACHINES, machine_from, read_machine


def test_a_short_file_is_enough():
    machine = machine_from({"device": "h200", "devices_per_node": 8, "between": "400GbE"}, "m.json")
    assert (machine.device, machine.between, machine.devices_per_node) == (DEVICES["H200"], LINKS["400GbE"], 8)
    like = machine_from({"like": "titan", "between": {"latency": 1e-6, "bandwidth": 6e9}}, "m.json")
    assert like.between.bandwidth == 6e9 and like.speeds == MACHINES["titan"].speeds
    own = machine_from({"device": {"peak": 1e12, "memory": 1e9, "memory_bandwidth": 1e10}}, "m.json")
    assert own.device.peak == {"fp32": 1e12}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "m.json: must be an object"),
        ({}, "m.json: a machine needs a device"),
        ({"device": "H2000"}, r"there is no device 'H2000' \(did you mean H200\?\)"),
        ({"device": "K20", "bandwidth": 1}, "m.json: unknown key 'bandwidth'"),
        ({"device": "K20", "between": "10Gb"}, r"there is no link '10Gb' \(did you mean 10GbE\?\)"),
        (
            {"device": "K20", "between": {"latency": 1}},
            "m.json: between: has no bandwidth; a link needs latency, bandwidth",
        ),
        (
            {"device": "K20", "between": {"latency": -1, "bandwidth": 1}},
            "between: latency: must be a number that is not",
        ),
        ({"device": "K20", "links_per_node": 0}, "m.json: links_per_node: must be a number above 0, not 0"),
        ({"device": "K20", "speed": "2"}, 'm.json: speed: must be a number above 0, not "2"'),
        ({"device": "K20", "exchange": "nccl"}, "m.json: exchange: must be textbook or fcaffe"),
        ({"device": "K20", "name": 1}, "m.json: name: must be a text in quotes, not 1"),
        ({"device": {"peak": 1e12}}, "m.json: device: has no memory; a device needs peak, memory, memory_bandwidth"),
        ({"device": "K20", "speeds": {"nin": 0}}, "m.json: speeds: nin: must be a number above 0, not 0"),
        ({"like": "titanic"}, r"there is no machine 'titanic' \(did you mean titan\?\)"),
    ],
)
def test_what_is_wrong_is_named(content, message):
    with pytest.raises(UsageError, match=message):
        machine_from(content, "m.json")


def test_a_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "m.json"
    path.write_text("{")
    for name in (str(path), str(tmp_path / "missing.json")):
        with pytest.raises(UsageError, match=f"cannot read the machine in {name}"):
            read_machine(name)


def test_the_known_are_plausible():
    """Data sheets typed by hand: no unit is a factor of a thousand off."""
    for device in DEVICES.values():
        assert 5e11 < device.peak_of("fp32") < 1e14 and 4e9 < device.memory < 1e12
        assert 5e10 < device.memory_bandwidth < 1e13 and 0.1 < device.efficiency < 0.9
    for link in LINKS.values():
        assert 5e-7 < link.latency < 1e-4 and 1e8 < link.bandwidth < 1e12
    for name, machine in MACHINES.items():
        assert machine.name == name
