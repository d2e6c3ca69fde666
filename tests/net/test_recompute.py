"""Computing activations a second time: the very same gradients from less memory."""

import numpy as np
import pytest

from fcaffe.net import Context, Net
from fcaffe.net.run import recompute as plan
from fcaffe.net.run.arena import memory_of
from fcaffe.net.run.layout import peak
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.rng import CaffeRandom
from fcaffe.solvers.memory_need import MemoryNeed
from tests.engine_choice import engine
from tests.net.test_whole_passes import APART

pytestmark = pytest.mark.usefixtures("on_each_engine")

INPUT = """layer { name: "in" type: "Input" top: "x" top: "label" input_param {
  shape { dim: 6 dim: 3 dim: 16 dim: 16 } shape { dim: 6 } } }"""


def convolution(name, bottom, top, outputs=8, more="kernel_size: 3 pad: 1"):
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{top}"
      convolution_param {{ num_output: {outputs} {more} weight_filler {{ type: "xavier" }} }} }}"""


def in_place(kind, name, blob, more=""):
    return f'layer {{ name: "{name}" type: "{kind}" bottom: "{blob}" top: "{blob}" {more} }}'


def normalized(name, bottom, top, relu=True, **options):
    layers = [convolution(name, bottom, top, **options), in_place("BatchNorm", f"bn_{name}", top)]
    layers.append(in_place("Scale", f"scale_{name}", top, "scale_param { bias_term: true filler { value: 1.5 } }"))
    return "\n".join(layers + [in_place("ReLU", f"relu_{name}", top)] * relu)


def loss(bottom, name="loss", more=""):
    return f"""layer {{ name: "ip_{name}" type: "InnerProduct" bottom: "{bottom}" top: "ip_{name}"
      inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "{name}" type: "SoftmaxWithLoss" bottom: "ip_{name}" bottom: "label" top: "{name}" {more} }}"""


def pool(name, bottom, top, more="kernel_size: 2 stride: 2"):
    return f'layer {{ name: "{name}" type: "Pooling" bottom: "{bottom}" top: "{top}" pooling_param {{ {more} }} }}'


def residual():
    layers, bottom = [INPUT, normalized("stem", "x", "stem")], "stem"
    for block in range(5):
        a, b, c = f"a{block}", f"b{block}", f"c{block}"
        layers += [normalized(a, bottom, a), normalized(b, a, b, relu=False)]
        layers.append(f'layer {{ name: "{c}" type: "Eltwise" bottom: "{b}" bottom: "{bottom}" top: "{c}" }}')
        layers.append(in_place("ReLU", f"relu_{c}", c))
        bottom = c
    return "\n".join([*layers, pool("pool", bottom, "pool", "pool: AVE global_pooling: true"), loss("pool")])


def chain():
    layers, bottom = [INPUT], "x"
    for stage in range(3):
        for number in range(3):
            top = f"s{stage}{number}"
            layers += [convolution(top, bottom, top), in_place("ReLU", f"relu_{top}", top)]
            bottom = top
        layers.append(pool(f"p{stage}", bottom, f"p{stage}"))
        bottom = f"p{stage}"
    layers.append('layer { name: "fc" type: "InnerProduct" bottom: "p2" top: "fc" inner_product_param { num_output: 9 '
                  'weight_filler { type: "xavier" } } }')  # fmt: skip
    layers += [in_place("ReLU", "relu_fc", "fc"), in_place("Dropout", "drop", "fc")]
    return "\n".join([*layers, loss("fc")])


def branches():
    """Concats, LRN, Dropout and pools in the middle, an activation out of place, a second loss."""
    return "\n".join(
        [
            INPUT,
            convolution("c1", "x", "c1"),
            'layer { name: "sigmoid" type: "Sigmoid" bottom: "c1" top: "sigmoid" }',
            'layer { name: "norm" type: "LRN" bottom: "sigmoid" top: "norm" lrn_param { local_size: 3 alpha: 0.1 } }',
            convolution("l", "norm", "l"),
            in_place("ReLU", "relu_l", "l"),
            pool("pool_r", "norm", "r", "kernel_size: 3 stride: 1 pad: 1"),
            normalized("r1", "r", "r1", outputs=4),
            'layer { name: "cat" type: "Concat" bottom: "l" bottom: "r1" top: "cat" }',
            'layer { name: "drop" type: "Dropout" bottom: "cat" top: "drop" dropout_param { dropout_ratio: 0.3 } }',
            convolution("m", "drop", "m"),
            'layer { name: "prelu" type: "PReLU" bottom: "m" top: "prelu" }',
            convolution("n", "prelu", "n"),
            'layer { name: "product" type: "Eltwise" bottom: "m" bottom: "n" top: "product" '
            "eltwise_param { operation: PROD } }",
            'layer { name: "slice" type: "Slice" bottom: "product" top: "u" top: "v" slice_param { axis: 1 } }',
            'layer { name: "flat" type: "Flatten" bottom: "u" top: "flat" }',
            pool("stochastic", "v", "w", "pool: STOCHASTIC kernel_size: 2 stride: 2"),
            convolution("o", "w", "o"),
            in_place("TanH", "tanh", "o"),
            loss("flat"),
            loss("o", "loss2", "loss_weight: 0.3"),
        ]
    )


NETS = {"residual": residual, "chain": chain, "branches": branches, "apart": lambda: APART}


def build(text, noise="counter", **context):
    param = parse_text(text, pb.NetParameter)
    upgrade_net(param, "net")
    param.state.phase = pb.TRAIN
    return Net(param, Context(engine(), CaffeRandom(3), noise=noise, seed=5, whole_passes=True, **context))


def pass_over(net, batch, seed):
    random = np.random.default_rng(seed)
    net.blob("x").reshape(batch, 3, 16, 16)
    net.blob("label").reshape(batch)
    net.blob("x").data[...] = random.standard_normal((batch, 3, 16, 16))
    net.blob("label").data[...] = random.integers(0, 4, batch)
    net.context.iteration = seed
    net.parameters.clear_diffs()
    losses = [net.forward()]
    net.backward()
    return losses + [array.copy() for p in net.parameters.owned for array in (p.blob.data, p.blob.diff)]


@pytest.mark.parametrize("noise", ["counter", "caffe"])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_have_the_same_bits(name, noise, recompute, monkeypatch):
    shared = build(NETS[name](), noise, recompute=recompute)
    apart = build(NETS[name](), noise)
    monkeypatch.setattr(apart.arena, "follow", lambda program: None)
    for seed, batch in enumerate((6, 6, 3, 9, 9)):
        for ours, theirs in zip(pass_over(shared, batch, seed), pass_over(apart, batch, seed), strict=True):
            assert np.array_equal(ours, theirs)
    assert bool(shared.arena.again) is recompute


@pytest.mark.parametrize("name", NETS)
def test_any_checkpoints_will_do(name, monkeypatch):
    """Whichever outputs are kept, what is missing is computed again before it is read."""
    random = np.random.default_rng(7)
    apart = build(NETS[name]())
    monkeypatch.setattr(apart.arena, "follow", lambda program: None)
    expected = pass_over(apart, 6, 1)
    for _ in range(6):

        def some(program):
            recompute = plan.Recompute(program)
            return recompute.again(frozenset(n for n in recompute.free if random.random() < 0.4))

        monkeypatch.setattr("fcaffe.net.run.arena.choose", some)
        for ours, theirs in zip(pass_over(build(NETS[name](), recompute=True), 6, 1), expected, strict=True):
            assert np.array_equal(ours, theirs)


def test_less_memory_for_at_most_another_forward():
    net = build(residual(), recompute=True)
    usual, less = build(residual()).memory(), net.memory()
    assert less.peak < 0.6 * usual.peak < 0.6 * memory_of(net.fused, {}, in_arena=False).peak
    net.forward()
    lowest = peak(net.fused, net.arena.again)
    arena = next(storage.buffer.base for storage in net.arena.storages)
    while arena.base is not None:
        arena = arena.base
    assert lowest <= arena.nbytes <= 1.3 * lowest


def test_need_and_advice():
    need = MemoryNeed.of(build(residual()), histories=1)
    assert need.histories == need.gradients and need.batch == 6
    text = str(need.error(MemoryError("no"), need.fixed + need.activations // 2))
    assert "--recompute" in text and "batch_size to 3 or less" in text and "batch of 6" in text
    assert "a larger device or a smaller net" in str(need.error(MemoryError("no"), need.parameters))
    assert "that this process can have; set batch_size" in str(need.error(MemoryError("no"), 2 * need.total))
    less = MemoryNeed.of(build(residual(), recompute=True), histories=1)
    assert not any("--recompute" in str(less.error(MemoryError("no"), size)) for size in (None, less.fixed, less.total))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_the_first_bad_value_is_found_though_it_is_gone(name, recompute):
    net = build(NETS[name](), recompute=recompute)
    pass_over(net, 6, 1)
    assert net.first_bad_blob() is None
    convolutions = [node for node in net.nodes if node.layer.type == "Convolution"]
    bad = convolutions[len(convolutions) // 2]
    bad.layer.blobs[0].data[...] = 3e38
    net.forward()
    assert net.first_bad_blob() == f'blob "{net.blob_names[bad.top_ids[0]]}" (top of layer "{bad.name}")'
