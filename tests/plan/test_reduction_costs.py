"""The cost of sums: rounds against formulas, and against messages replayed one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.errors import UsageError
from fcaffe.plan.machine import DEVICES, FCAFFE, MACHINES, Link, Machine
from fcaffe.plan.reductions import COMPARED, REDUCTIONS, sum_of
from tests.plan import closed_forms

sizes = st.integers(1 << 10, 1 << 29)
links = st.builds(Link, st.just("link"), st.floats(1e-7, 1e-3), st.floats(1e7, 1e12))


def flat(link: Link, **more) -> Machine:
    return Machine("flat", DEVICES["K20"], between=link, **more)


@settings(deadline=None)
@given(st.sampled_from(sorted(closed_forms.FORMS)), st.integers(2, 100_000), sizes, links, st.floats(1e8, 1e11))
def test_rounds_add_up_to_the_closed_forms(name, workers, size, link, adding):
    machine = flat(link, add_bandwidth=adding)
    form = closed_forms.FORMS[name](size, workers, link.latency, 1 / link.bandwidth, 1 / adding)
    assert sum_of(name, machine, workers, size) == pytest.approx(form, rel=0.02)


@settings(deadline=None)
@given(st.sampled_from(sorted(COMPARED)), st.integers(2, 5000), sizes, links, st.integers(1, 16), st.integers(1, 16))
def test_a_faster_network_is_never_slower(name, workers, size, link, node, links_per_node):
    def seconds(factor: float) -> float:
        faster = Link(link.name, link.latency, link.bandwidth * factor)
        machine = flat(faster, devices_per_node=node, links_per_node=links_per_node)
        return sum_of(name, machine, workers, size)

    assert seconds(2.0) <= seconds(1.0)


@settings(deadline=None)
@given(st.integers(2, 10_000), sizes, links)
def test_a_ring_of_nodes_is_a_ring(workers, size, link):
    by_nodes = sum_of("hierarchical", flat(link), workers, size)
    assert by_nodes in (sum_of(name, flat(link), workers, size) for name in ("ring", "halving", "doubling"))


@settings(deadline=None)
@given(sizes, links, links)
def test_hierarchical_is_scatter_within_sum_between_gather_within(size, within, between):
    """Eight devices with a link each, sixteen nodes: RS(8, n) + AR(16, n / 8) + AG(8, n)."""
    machine = flat(between, within=within, devices_per_node=8, links_per_node=8)
    inside = closed_forms.ring(size, 8, within.latency, 1 / within.bandwidth, 0)
    outside = [
        form(size / 8, 16, between.latency, 1 / between.bandwidth, 0)
        for form in (closed_forms.ring, closed_forms.halving, closed_forms.doubling)
    ]
    took = sum_of("hierarchical", machine, 128, size)
    assert any(took == pytest.approx(inside + one, rel=1e-9) for one in outside)


@settings(deadline=None)
@given(st.integers(1, 7), sizes, links)
def test_streams_share_the_link_of_a_node(power, size, link):
    one, shared = (
        sum_of("halving", flat(link, devices_per_node=1, within=link), 64, size),
        sum_of("halving", flat(link, devices_per_node=1 << min(power, 6), within=link), 64, size),
    )
    assert shared >= one * (1 - 1e-9)


def tree_by_messages(ranks: int, segments: int, lag_of: int, message: float) -> float:
    """fcaffe's tree in segments, message by message: a rank's link takes one message at a time each way."""
    levels = [1 << level for level in range(ranks.bit_length()) if 1 << level < ranks]
    children = [[r + d for d in levels if r % (2 * d) == 0 and r + d < ranks] for r in range(ranks)]
    parent = {child: rank for rank in range(ranks) for child in children[rank]}
    up_at = [[0.0] * segments for _ in range(ranks)]
    for rank in sorted(range(ranks), key=lambda r: len(children[r])):
        free = 0.0
        for segment in range(segments):
            for child in children[rank]:
                free = max(free, up_at[child][segment]) + message
            up_at[rank][segment] = free
    down_at = [[0.0] * segments for _ in range(ranks)]
    down_at[0] = up_at[0]
    for rank in range(ranks):  # parents have smaller numbers
        free = 0.0
        for segment in range(segments):
            for child in reversed(children[rank]):
                begins_to_take = up_at[child][min(segments, lag_of + segment) - 1] if children[child] else 0.0
                free = max(free, down_at[rank][segment], begins_to_take) + message
                down_at[child][segment] = free
    assert len(parent) == ranks - 1
    return max(times[-1] for times in down_at)


@pytest.mark.parametrize("workers", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("megabytes", [4, 16, 64])
def test_the_tree_in_segments_is_near_its_messages(workers, megabytes):
    """Within a fifth: the formula leaves out how the ways up and down of inner ranks get in each other's way."""
    size = megabytes << 20
    link = Link("link", 1e-9, 1e9)
    length = min(max(size // 8, 4 << 17), 4 << 20)
    segments = math.ceil(size / length)
    replayed = tree_by_messages(workers, segments, 2 * workers.bit_length(), length / 1e9)
    assert sum_of("segmented-tree", flat(link), workers, size) == pytest.approx(replayed, rel=0.2)


def test_fcaffe_serves_itself_and_cuts_its_tree():
    link = Link("link", 0.0, 1e9)
    book, own = flat(link), flat(link, exchange=FCAFFE)
    n = 32 << 20
    assert sum_of("server", own, 8, n) == pytest.approx(2 * 7 * n / 1e9)
    assert sum_of("server", book, 8, n) == pytest.approx(2 * 8 * n / 1e9)
    assert sum_of("tree", own, 8, n) == sum_of("segmented-tree", book, 8, n)
    assert sum_of("tree", book, 8, n) == sum_of("whole-tree", own, 8, n)


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_one_worker_sums_nothing(name):
    assert sum_of(name, MACHINES["titan"], 1, 1 << 20) == 0


def test_an_unknown_reduction_is_named():
    with pytest.raises(UsageError, match=r"there is no reduction 'rings' \(did you mean ring\?\)"):
        sum_of("rings", MACHINES["titan"], 2, 4)
