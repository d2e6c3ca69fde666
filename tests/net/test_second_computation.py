"""A second computation of a pass gives the same bits and changes nothing else: for each setting of each layer, for a
single layer, for `--recompute` and for a script that reads a blob later. A layer from elsewhere is never run twice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fcaffe.layers.activations import Activation
from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.dropout import Dropout
from fcaffe.net import Context, Net, registry
from fcaffe.net.noise import Noise
from fcaffe.net.registry import create_layer
from fcaffe.net.run import arena
from fcaffe.net.run import recompute as plan
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.rng.counter import TEST, TRAINING, Moment
from tests.cases import each_of
from tests.engine_choice import engine, host
from tests.layers.examples import Example
from tests.layers.test_contract import Case, bottom_values
from tests.layers.test_state import ALL as SETTINGS

pytestmark = pytest.mark.usefixtures("on_each_engine")

ALL = [(kind, example) for kind, example in SETTINGS if example.bottoms and kind != "Python"]
NOISES = "caffe", "counter"
PASSES = 3


def changed(values: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(values, others, strict=True))


def kept(layer: Any) -> list[np.ndarray]:
    """What later passes depend on."""
    random = np.frombuffer(layer.context.random.state(), np.uint8)
    return [*(host(blob.data) for blob in layer.blobs), *layer.state().values(), random]


@each_of(ALL)
def test_forward_again(kind: str, example: Example) -> None:
    """After other passes, of this net and of others, which draw from the same stream."""
    for noise in NOISES:
        case = Case(kind, example)
        case.context.noise = noise
        for number in range(PASSES):
            case.context.begin_pass(Moment(TRAINING, 4, number))
            case.node.forward()
        wanted = [*(host(top.data) for top in case.top), *gradients(case)]
        case.context.random.draws(5)
        case.context.begin_pass(Moment(TEST, 4, 0))
        before, bottoms = kept(case.layer), [blob.data_storage for blob in case.bottom]
        for blob in {*case.top, *case.node.saved()}:
            if blob.data_storage not in bottoms:
                blob.data[...] = np.nan if blob.dtype.kind == "f" else 77
        case.node.forward_again()
        assert not changed([*(host(top.data) for top in case.top), *gradients(case)], wanted), noise
        assert not changed(kept(case.layer), before), f"{noise}: the second computation changes something"


def gradients(case: Case) -> list[np.ndarray]:
    if not case.example.has_gradient:
        return []
    for blob in case.layer.blobs:
        blob.diff[...] = 0
    case.backward()
    asked = [blob for blob, down in zip(case.bottom, case.propagate_down, strict=True) if down]
    return [host(blob.diff) for blob in (*asked, *case.layer.blobs)]


def net_of(kind: str, example: Example, noise: str, **context: Any) -> Net:
    """The layer between others, so that its blobs may lie in the arena."""
    bottoms = range(len(example.bottoms))
    given = {*example.labels, *example.constants, *example.values}
    layers = []
    for index, shape in enumerate(example.bottoms):
        dims = " ".join(f"dim: {n}" for n in shape)
        name = f"b{index}" if index in given else f"x{index}"
        layers.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}')
        if index not in given:
            layers.append(f'layer {{ name: "p{index}" type: "Power" bottom: "x{index}" top: "b{index}" }}')
    tops = [f"t{index}" for index in range(example.tops)]
    text = "".join([f' bottom: "b{index}"' for index in bottoms] + [f' top: "{top}"' for top in tops])
    layers.append(f'layer {{ name: "it" type: "{kind}" {text} {example.text} }}')
    for top in tops if "loss_weight" not in example.text else ():
        named = f'name: "q{top}" bottom: "{top}" top: "q{top}" loss_weight: 1'
        layers.append(f'layer {{ {named} type: "Power" power_param {{ power: 2 }} }}')
    param = parse_text("force_backward: true\n" * example.has_gradient + "\n".join(layers), pb.NetParameter)
    param.state.phase = pb.Phase.Value(example.phase)
    net = Net(param, Context(engine(), CaffeRandom(3), noise=noise, seed=5, **context))
    for index, values in enumerate(bottom_values(example)):
        net.blob(f"b{index}" if index in given else f"x{index}").data[...] = net.context.engine.xp.asarray(values)
    return net


def all_of(net: Net) -> list[np.ndarray]:
    return [*(host(blob.data) for blob in net.blobs), *itertools.chain(*(kept(layer) for layer in net.layers))]


@each_of(ALL)
def test_recomputed_in_backward(kind: str, example: Example) -> None:
    """Whatever may run again does."""
    if not example.has_gradient:
        return
    choose = arena.choose
    arena.choose = lambda program: plan.Recompute(program).again(frozenset())
    try:
        for noise in NOISES:
            nets = [net_of(kind, example, noise, whole_passes=True, recompute=again) for again in (False, True)]
            for _ in range(PASSES):
                found = []
                for net in nets:
                    net.parameters.clear_diffs()
                    net.forward()
                    net.backward()
                    learned = [host(blob.diff) for layer in net.layers for blob in layer.blobs]
                    inputs = [host(net.blobs[index].diff) for index in net.input_ids]
                    outputs = [host(blob.data) for _, blob, _ in net.outputs()]
                    found.append([*learned, *inputs, *outputs, *itertools.chain(*map(kept, net.layers))])
                assert not changed(*found), noise
    finally:
        arena.choose = choose


@each_of(ALL)
def test_computed_when_a_script_reads_it(kind: str, example: Example) -> None:
    """After passes of another net, which draws from the same stream."""
    if engine().xp is not np:
        return
    for noise in NOISES:
        plain, script = net_of(kind, example, noise), net_of(kind, example, noise, on_demand=True)
        other = net_of("Dropout", Example(bottoms=((3, 4),)), noise)
        for _ in range(PASSES):
            for net in (plain, script):
                net.forward()
                other.context.random = net.context.random
                other.forward()
            script.complete()
            for ours, theirs in zip(all_of(script), all_of(plain), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7, err_msg=noise)


# --- layers from elsewhere ------------------------------------------------------------------------------------------


class Mine(Activation):
    """As in docs/contributing.md, with noise and a count of its own, in its own way."""

    traits = replace(Activation.traits, reads="neither")
    forwards = 0

    def forward(self, bottom: Any, top: Any) -> None:
        self.forwards += 1
        top[0].data[...] = bottom[0].data + np.random.standard_normal(bottom[0].shape)

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        bottom[0].diff[...] = top[0].diff


class SaysThatItIsRepeatable(Mine):
    traits = replace(Mine.traits, repeatable=True)

    def forward_again(self, bottom: Any, top: Any) -> None:
        raise AssertionError("is not called")


class DrawsAsDocumented(Mine):
    def setup(self, bottom: Any, top: Any) -> None:
        self.noise = Noise(self, bottom[0])

    def forward(self, bottom: Any, top: Any) -> None:
        self.forwards += 1
        top[0].data[...] = bottom[0].data + self.noise.uniform(bottom[0].shape)


class MyDropout(Dropout):
    forwards = 0

    def forward(self, bottom: Any, top: Any) -> None:
        self.forwards += 1
        super().forward(bottom, top)


class MyNorm(BatchNorm):
    forwards = 0

    def forward(self, bottom: Any, top: Any) -> None:
        self.forwards += 1
        super().forward(bottom, top)


class Holds(Mine):
    """Holds a layer that draws."""

    def setup(self, bottom: Any, top: Any) -> None:
        self.dropout = create_layer(pb.LayerParameter(name="held", type="Dropout", phase=self.phase), self.context)
        self.dropout.setup(bottom, top)

    def reshape(self, bottom: Any, top: Any) -> None:
        self.dropout.reshape(bottom, top)

    def forward(self, bottom: Any, top: Any) -> None:
        self.forwards += 1
        self.dropout.forward(bottom, top)


KINDS = [Mine, SaysThatItIsRepeatable, DrawsAsDocumented, MyDropout, MyNorm, Holds]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", NOISES)
def test_a_layer_from_elsewhere_runs_once_in_a_pass(kind: Any, noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registry, "Elsewhere", kind)
    setting = Example(bottoms=((4, 6),))
    script = net_of("Elsewhere", setting, noise, on_demand=True)
    trained = net_of("Elsewhere", setting, noise, whole_passes=True, recompute=True)
    mine = [next(layer for layer in net.layers if isinstance(layer, kind)) for net in (script, trained)]
    for number in range(1, PASSES + 1):
        script.forward()
        script.complete()
        np.testing.assert_array_equal(script.blob("qt0").data, script.blob("t0").data ** 2)
        trained.forward()
        trained.backward()
        trained.first_bad_blob()
        assert [layer.forwards for layer in mine] == [number, number]
