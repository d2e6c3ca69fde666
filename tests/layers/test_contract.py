"""What every layer type must do, checked for all that are registered with the configurations of examples.py."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fcaffe.errors import FcaffeError, NetError
from fcaffe.net import Blob, Context, layer_types
from fcaffe.net.node import Node
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from tests.cases import case as named
from tests.cases import each_of
from tests.engine_choice import host, shared_engine
from tests.golden_values import assert_close
from tests.layers.examples import EXAMPLES, TESTED_ELSEWHERE, Example

# The other checks run with plain operators in tests/engines/cuda/test_plain_on_stand_in.py.
on_each_engine = pytest.mark.usefixtures("on_each_engine")

STEP = 1e-2  # of the central differences
ELEMENTS = 12  # of an array that are changed for central differences

ALL = [(kind, example) for kind, examples in EXAMPLES.items() for example in examples]


def each(condition=lambda example: True):
    """A test for each type of layers, over its examples for which the condition holds."""
    return each_of((kind, example) for kind, example in ALL if condition(example))


class Case:
    """A layer of this type between blobs that hold reproducible values."""

    def __init__(self, kind: str, example: Example, in_place: bool = False, seed: int = 5):
        self.context = Context(shared_engine(), CaffeRandom(seed), seed=7)
        param = parse_text(example.text, pb.LayerParameter)
        param.name, param.type, param.phase = "it", kind, pb.Phase.Value(example.phase)
        param.bottom.extend(f"x{index}" for index in range(len(example.bottoms)))
        self.layer = create_layer(param, self.context)
        xp = self.context.engine.xp
        self.bottom = [Blob(xp, shape, channels_last=True) for shape in example.bottoms]
        self.top = self.bottom if in_place else [Blob(xp, (), channels_last=True) for _ in range(example.tops)]
        self.write_bottoms(example)
        self.layer.initialize(self.bottom, self.top)
        self.node = Node(0, self.layer, self.bottom, self.top, [])
        if in_place and self.layer.traits.copies_bottom != "never":
            self.node.before = Blob(xp, (), channels_last=True)
        for index, blob in enumerate(self.layer.blobs):
            squares = values(blob.shape, 10 + index) ** 2  # 0 or 1 would hide much; positive for BatchNorm
            blob.data[...] += blob.xp.asarray(squares)
        self.random = self.context.random.state()

    def write_bottoms(self, example: Example) -> None:
        for blob, array in zip(self.bottom, bottom_values(example), strict=True):
            blob.reshape(*array.shape)
            blob.data[...] = blob.xp.asarray(array)
        self.example = example
        given = {*example.labels, *example.constants}
        self.propagate_down = [index not in given for index in range(len(self.bottom))]

    def forward(self) -> None:
        self.context.random.set_state(self.random)
        self.node.forward()

    def objective(self) -> float:
        """A weighted sum of all tops, whose gradient `backward` computes."""
        self.forward()
        return sum(
            float((host(top.data).astype(np.float64) * values(top.shape, index)).sum())
            for index, top in enumerate(self.top)
        )

    def backward(self) -> None:
        for index, top in enumerate(self.top):
            top.diff[...] = top.xp.asarray(values(top.shape, index))
        self.node.bottom_need_backward = self.propagate_down
        self.node.backward()

    def run(self) -> dict[str, np.ndarray]:
        """Forward and backward; everything that came out."""
        self.forward()
        found = {f"top {index}": host(top.data) for index, top in enumerate(self.top)}
        if self.example.has_gradient:
            self.backward()
            for index, (blob, down) in enumerate(zip(self.bottom, self.propagate_down, strict=True)):
                if down:
                    found[f"gradient of bottom {index}"] = host(blob.diff)
            for index, blob in enumerate(self.layer.blobs):
                found[f"gradient of parameter {index}"] = host(blob.diff)
        return found


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def bottom_values(example: Example) -> list[np.ndarray]:
    """All values differ, from one another and from 0, by more than a step, so that no kink lies within one."""
    counts = [int(np.prod(shape)) for shape in example.bottoms]
    total = 2 * sum(counts)
    spaced = np.linspace(0.1, 4, total) if example.positive else np.linspace(-3, 3, total)
    drawn = np.random.default_rng(1).permutation(spaced).astype(np.float32)
    arrays = np.split(drawn, np.cumsum(counts))[: len(counts)]
    for index, classes in example.labels.items():
        arrays[index] = (np.arange(counts[index]) * 7 % classes).astype(np.float32)
    for index, given in example.values.items():
        arrays[index] = np.resize(np.float32(given), counts[index])
    return [array.reshape(shape) for array, shape in zip(arrays, example.bottoms, strict=True)]


def assert_equal_results(found, expected, tolerance=2e-6):
    assert found.keys() == expected.keys()
    for what in expected:
        assert_close(found[what], expected[what], what, tolerance)


def test_every_type_has_an_example():
    assert set(layer_types()) == {*EXAMPLES, *TESTED_ELSEWHERE}


@on_each_engine
@each(lambda example: example.has_gradient and example.smooth)
def test_gradient(kind, example):
    case = Case(kind, example)
    case.forward()
    case.backward()
    for index, (blob, down) in enumerate(zip(case.bottom, case.propagate_down, strict=True)):
        if down:
            check_gradient(case, blob, f"bottom {index}")
    for index, blob in enumerate(case.layer.blobs):
        if blob in case.layer.running_statistics:
            assert not blob.diff.any(), "statistics have no gradient"
        else:
            check_gradient(case, blob, f"parameter {index}")


@on_each_engine
def test_gradient_over_that_of_the_top():
    """Layers that say so compute the same where the gradients of bottom and top are one memory."""
    checked = set()
    for kind, example in ALL:
        separate, shared = Case(kind, example), Case(kind, example)
        shared.node.bottom_need_backward = shared.propagate_down
        if not (example.has_gradient and example.bottoms and shared.node.overwrites_gradient):
            continue
        shared.bottom[0].share_diff(shared.top[0])
        with named(kind, example):
            assert_equal_results(shared.run(), separate.run(), 0)
        checked.add(kind)
    assert {"ReLU", "Split", "Eltwise", "BatchNorm", "Scale", "Softmax", "Normalize", "Bias", "MVN"} <= checked


def check_gradient(case, blob, what):
    """By central differences of the largest values of the gradient and of random ones."""
    computed, data = host(blob.diff), blob.data
    order = np.argsort(-abs(computed), axis=None)
    random = np.random.default_rng(1).permutation(order[ELEMENTS // 2 :])
    chosen = [*order[: ELEMENTS // 2], *random[: ELEMENTS // 2]]
    scale = abs(computed).max(initial=0)
    indices = list(np.ndindex(*blob.shape))
    for index in (indices[number] for number in chosen):
        value = float(data[index])
        data[index] = value + STEP
        above = case.objective()
        data[index] = value - STEP
        below = case.objective()
        data[index] = value
        error = abs(computed[index] - (above - below) / (2 * STEP))
        assert error <= 2e-3 * scale, f"{what}: off by {error:g} where the largest is {scale:g}"


@each(lambda example: example.in_place)
def test_in_place_equals_out_of_place(kind, example):
    for in_c_order in (False, True):
        case = Case(kind, example, in_place=True)
        if in_c_order:
            case.bottom[0].make_contiguous()
        assert_equal_results(case.run(), Case(kind, example).run())


@each(lambda example: example.bottoms and example.batched != ())
def test_batch_size_changes(kind, example):
    case = Case(kind, example)
    for batch in (5, 0, 2, 7) if example.empty_batch else (5, 2, 7):
        changed = with_batch(example, batch)
        case.write_bottoms(changed)
        for blob in case.layer.blobs:
            blob.diff[...] = 0
        fresh = Case(kind, changed)
        for ours, theirs in zip(case.layer.blobs, fresh.layer.blobs, strict=True):
            theirs.data[...] = ours.data
        assert_equal_results(case.run(), fresh.run(), tolerance=0)


def with_batch(example, batch):
    batched = range(len(example.bottoms)) if example.batched is None else example.batched
    shapes = ((batch, *shape[1:]) if index in batched else shape for index, shape in enumerate(example.bottoms))
    return replace(example, bottoms=tuple(shapes))


@each(lambda example: example.bottoms and example.batched != () and example.empty_batch)
def test_empty_batch(kind, example):
    """Filter may leave no sample: then every sum is 0, and nothing is learned."""
    case = Case(kind, example)
    case.write_bottoms(with_batch(example, 0))
    before = [host(blob.data) for blob in case.layer.blobs]
    for what, result in case.run().items():
        assert not result.any(), what
    for blob, data in zip(case.layer.blobs, before, strict=True):
        np.testing.assert_array_equal(host(blob.data), data)


@each(lambda example: example.has_gradient)
def test_parameter_gradients_add_up(kind, example):
    case = Case(kind, example)
    once = case.run()
    case.backward()
    for index, blob in enumerate(case.bottom):
        if case.propagate_down[index]:
            np.testing.assert_array_equal(host(blob.diff), once[f"gradient of bottom {index}"])
    for index, blob in enumerate(case.layer.blobs):
        assert_close(host(blob.diff), 2 * once[f"gradient of parameter {index}"], f"parameter {index} after two passes")


@on_each_engine
@each(lambda example: example.bottoms)
def test_who_is_asked_for_a_gradient_writes_all_of_it(kind, example):
    """Of each bottom that is asked for, in every combination, and of no other: what lay there before shows nowhere.
    Forward writes none. A gradient that makes no sense is refused, and one of a constant is zero; `force_backward` asks
    for neither. Parameters that do not learn get none."""
    whole = Case(kind, example).run()
    case = Case(kind, example)
    for blob in case.bottom:
        blob.diff[...] = np.nan
    case.forward()
    assert all(np.isnan(host(blob.diff)).all() for blob in case.bottom)
    for asked in itertools.product([False, True], repeat=len(case.bottom)):
        for blob in case.bottom:
            blob.diff[...] = np.nan
        for blob in case.layer.blobs:
            blob.diff[...] = 0
        case.propagate_down = list(asked)
        senseless = [index for index, down in enumerate(asked) if down and index in refused(kind, example)]
        if senseless:
            with pytest.raises(NetError, match=r'layer "it" .*gradient'):
                case.backward()
            assert not any(case.layer.allow_force_backward(index) for index in senseless)
            continue
        case.backward()
        for index, (blob, down) in enumerate(zip(case.bottom, asked, strict=True)):
            if not down:
                assert np.isnan(host(blob.diff)).all(), f"bottom {index} is written, though only {asked} are asked for"
            elif index in example.labels or index in example.constants:
                assert not host(blob.diff).any(), f"bottom {index} is a constant"
                assert not case.layer.allow_force_backward(index)
            else:
                what = f"gradient of bottom {index}"
                np.testing.assert_array_equal(host(blob.diff), whole[what], f"{what} of {asked}")
        for index, blob in enumerate(case.layer.blobs):
            np.testing.assert_array_equal(host(blob.diff), whole[f"gradient of parameter {index}"], str(asked))
            blob.diff[...] = 0
    case.layer.param_propagate_down = [False] * len(case.layer.blobs)
    case.propagate_down = [False] * len(case.bottom)
    case.backward()
    assert not any(host(blob.diff).any() for blob in case.layer.blobs)


@on_each_engine
@each(lambda example: example.has_gradient and example.bottoms)
def test_backward_reads_only_what_the_layer_says(kind, example):
    """What it does not name in `saved` may be overwritten by then."""
    for in_place in {False, example.in_place}:
        whole = Case(kind, example, in_place).run()
        case = Case(kind, example, in_place)
        case.forward()
        read = case.node.saved()
        for blob in [*case.bottom, *case.top]:
            if blob not in read and blob.data_storage not in [other.data_storage for other in read]:
                blob.data[...] = np.nan
        case.backward()
        for index, blob in enumerate(case.bottom):
            if case.propagate_down[index]:
                np.testing.assert_array_equal(host(blob.diff), whole[f"gradient of bottom {index}"])
        for index, blob in enumerate(case.layer.blobs):
            np.testing.assert_array_equal(host(blob.diff), whole[f"gradient of parameter {index}"])


def test_backward_needs_what_the_layer_saves():
    """Values that are saved in vain take memory. Python layers and recurrent ones save all that they may read."""
    unneeded = []
    for kind in EXAMPLES.keys() - {"Python", "LSTM", "RNN", "Lstm"}:
        saved, needed = set(), set()
        for example in EXAMPLES[kind]:
            for group in ("bottom", "top") if example.has_gradient and example.bottoms else ():
                with np.errstate(all="ignore"):
                    whole, case = Case(kind, example).run(), Case(kind, example)
                    case.forward()
                    if poisoned := [blob for blob in getattr(case, group) if blob in case.node.saved()]:
                        saved.add(group)
                    for blob in poisoned:
                        blob.data[...] = np.nan
                    try:
                        case.backward()
                    except FcaffeError:  # a label that is no class
                        needed.add(group)
                        continue
                found = [host(blob.diff) for blob in (*case.bottom, *case.layer.blobs)]
                right = [whole.get(f"gradient of bottom {index}") for index in range(len(case.bottom))]
                right += [whole[f"gradient of parameter {index}"] for index in range(len(case.layer.blobs))]
                if not all(b is None or np.array_equal(a, b) for a, b in zip(found, right, strict=True)):
                    needed.add(group)
        unneeded += [(kind, group) for group in saved - needed]
    assert not unneeded


def refused(kind, example):
    """The bottoms that have no gradient at all: those of class numbers, and all of a layer without one."""
    if not example.has_gradient:
        return range(len(example.bottoms))
    return [] if kind == "ContrastiveLoss" else [*{*example.labels} - {*example.constants}]


@each()
def test_c_order_gives_the_same(kind, example):
    whole = Case(kind, example).run()
    for bottoms, tops in [(True, False), (False, True), (True, True)]:
        case = Case(kind, example)
        for blob in case.bottom * bottoms + case.top * tops:
            blob.make_contiguous()
            assert blob.data.flags.c_contiguous
        assert_equal_results(case.run(), whole)
