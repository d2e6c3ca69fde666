"""One iteration, event by event."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.plan.reductions import Sum
from fcaffe.plan.simulation import Bucket, Outcome, pipelined, simulate

times = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@st.composite
def cases(draw):
    backward = draw(times)
    after = sorted(draw(st.lists(st.integers(0, len(backward) - 1), max_size=6)))
    cut = [Bucket(index + 1, position) for index, position in enumerate(after)]
    seconds = [draw(st.floats(0.0, 2.0)) for _ in cut]
    return draw(st.floats(0.0, 1.0)), backward, cut, [Sum(each, ()) for each in seconds]


@settings(deadline=None)
@given(cases())
def test_time_lies_between_its_bounds(case):
    forward, backward, cut, costs = case
    with_overlap = simulate(forward, backward, cut, costs, overlap=True)
    without = simulate(forward, backward, cut, costs, overlap=False)
    computing = forward + sum(backward)
    sums = sum(cost.seconds for cost in costs)
    assert without.end == pytest.approx(computing + sums)
    assert with_overlap.summing == without.summing == pytest.approx(sums)
    last = costs[-1].seconds if cut and cut[-1].after == len(backward) - 1 else 0.0
    assert max(computing + last, forward + sums) <= with_overlap.end + 1e-9
    assert with_overlap.end <= without.end + 1e-9
    assert with_overlap.end >= max(computing, forward + sums) - 1e-9
    assert with_overlap.exposed >= 0


@settings(deadline=None)
@given(cases())
def test_sums_follow_one_another_once_their_buckets_are_final(case):
    forward, backward, cut, costs = case
    events = simulate(forward, backward, cut, costs).sums
    for event, after in zip(events[1:], events, strict=False):
        assert event.start >= after.end
    for event, bucket in zip(events, cut, strict=True):
        assert event.start >= forward + sum(backward[: bucket.after + 1]) - 1e-9


@st.composite
def iterations(draw):
    """A net of some layers, whose last bucket is ready when backward ends, as fcaffe's is."""
    layers = draw(st.integers(1, 8))
    forward, backward = (draw(st.lists(st.floats(0.0, 1.0), min_size=layers, max_size=layers)) for _ in range(2))
    after = sorted(draw(st.lists(st.integers(0, layers - 1), max_size=5)))
    cut = [Bucket(index + 1, position) for index, position in enumerate([*after, layers - 1])]
    total = sum(bucket.bytes for bucket in cut)
    needs = draw(st.lists(st.integers(0, total), min_size=layers, max_size=layers))
    seconds = [draw(st.floats(0.0, 2.0)) for _ in cut]
    update = draw(st.floats(0.0, 1.0))
    return forward, needs, backward, cut, [Sum(each, ()) for each in seconds], update


def before_the_update(case, overlap: bool = True) -> float:
    """The end of an iteration that waits for all sums before its update."""
    forward, _, backward, cut, costs, update = case
    return simulate(sum(forward), backward, cut, costs, overlap).end + update


@settings(deadline=None)
@given(iterations())
def test_a_late_update_hides_more_but_no_more_than_there_is(case):
    forward, _, backward, _, _, update = case
    late = pipelined(*case)
    assert late.computing == pytest.approx(sum(forward) + sum(backward) + update)
    assert max(late.computing, late.summing) <= late.end + 1e-9
    assert late.end <= before_the_update(case) + 1e-9
    assert late.exposed == pytest.approx(late.end - late.computing)


@settings(deadline=None)
@given(iterations())
def test_one_bucket_is_as_without_overlap(case):
    forward, needs, backward, cut, costs, update = case
    one = (forward, needs, backward, cut[-1:], costs[-1:], update)
    assert pipelined(*one).end == pytest.approx(before_the_update(one, overlap=False))


@settings(deadline=None)
@given(iterations())
def test_a_first_layer_that_needs_all_waits_for_all(case):
    forward, needs, backward, cut, costs, update = case
    total = sum(bucket.bytes for bucket in cut)
    eager = (forward, [total, *needs[1:]], backward, cut, costs, update)
    waited = pipelined(*eager)
    last = max(event.end for event in waited.sums)
    assert waited.end >= last + sum(forward) - 1e-9
    assert waited.end >= pipelined(*case).end - 1e-9


@settings(deadline=None)
@given(iterations())
def test_the_front_bucket_waits_for_those_alone_that_have_begun(case):
    outcome, cut = pipelined(*case), case[3]
    sums = outcome.sums
    assert all(after.start >= event.end for event, after in itertools.pairwise(sums))
    sizes = [event.bucket.bytes for event in sums]
    backward_end = sum(case[2])
    position = sizes.index(cut[-1].bytes)
    assert all(event.start <= backward_end for event in sums[:position])
    assert all(event.start >= backward_end for event in sums[position:])
    assert sizes[:position] + sizes[position + 1 :] == [bucket.bytes for bucket in cut[:-1]]


def test_sums_go_on_behind_the_next_forward_pass():
    """Two layers of a second each way, and buckets of one each. The last layer's sum, of two seconds, begins after its
    backward; the front one follows it at 3 and is through at 3.5, then forward begins. With a long sum of the last
    layer cut in two, the front one comes between."""
    seconds = {8: 2.0, 4: 0.5}

    def end(cut: list[Bucket]) -> Outcome:
        return pipelined([1.0, 1.0], [4, 24], [1.0, 1.0], cut, [Sum(seconds[bucket.bytes], ()) for bucket in cut])

    assert end([Bucket(8, 0), Bucket(4, 1)]).end == pytest.approx(5.5)
    overtaken = end([Bucket(8, 0), Bucket(8, 0), Bucket(4, 1)])  # sums end at 3, 3.5 (front) and 5.5
    assert overtaken.end == pytest.approx(6.5)
    assert overtaken.exposed == pytest.approx(2.5)
