"""Machines in files: what they may say, and that what is written reads the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.cli.plan import LONG, SHORT, link_of
from fcaffe.errors import UsageError
from fcaffe.plan.machine import DEVICES, FCAFFE, LINKS, MACHINES, TITAN, Link, machine_from, read_machine, write_machine
from fcaffe.plan.reductions import sum_of


def test_what_is_written_reads_the_same(tmp_path):
    path = str(tmp_path / "machine.json")
    machine = replace(
        MACHINES["h200"],
        between=Link("limited", 1e-5, 1e8, "", burst=2.5e5),
        exchange=FCAFFE,
        cores=8,
        speeds={"n": 2.0},
        add_bandwidth=1e10,
        read_images=100.0,
        speed=7.0,
    )
    write_machine(machine, path)
    read = read_machine(path)

    def bare(one):
        link = {name: replace(getattr(one, name), source="") for name in ("within", "between")}
        device = replace(one.device, source="", efficiency_source="")
        return replace(one, source="", device=device, **link)

    assert bare(read) == bare(machine)
    assert read.source == path and path in read.between.source and path in read.device.source


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
            "between.latency: must be a number that is not",
        ),
        ({"device": "K20", "cores": 0}, "m.json: cores: must be a whole number from 1 on, not 0"),
        ({"device": "K20", "speed": "2"}, 'm.json: speed: must be a number above 0, not "2"'),
        ({"device": "K20", "exchange": "nccl"}, "m.json: exchange: must be textbook or fcaffe"),
        ({"device": "K20", "name": 1}, "m.json: name: must be a text in quotes, not 1"),
        ({"device": {"peak": 1e12}}, "m.json: device: has no memory; a device needs peak, memory, memory_bandwidth"),
        ({"device": "K20", "speeds": {"nin": 0}}, "m.json: speeds.nin: must be a number above 0, not 0"),
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


@settings(deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(1e7, 1e10))
def test_what_is_measured_of_a_link_is_the_link(latency: float, bandwidth: float) -> None:
    machine = replace(TITAN, between=Link("", latency, bandwidth, ""), exchange=FCAFFE)
    found = link_of("", *(sum_of("server", machine, 2, size).seconds for size in (SHORT, LONG)))
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert found.latency == pytest.approx(latency, rel=0.01, abs=1e-5)


@settings(deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(1e7, 1e10), st.floats(0, 1 << 20))
def test_a_burst_spares_what_it_lets_through_at_once(latency: float, bandwidth: float, burst: float) -> None:
    limited, free = (
        sum_of("server", replace(TITAN, between=Link("", latency, bandwidth, "", size)), 8, 1 << 20).seconds
        for size in (0.0, burst)
    )
    assert 0 <= limited - free <= 2.001 * burst / bandwidth + 1e-12
