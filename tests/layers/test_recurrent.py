"""LSTM and RNN over time: states that carry over or are handed on, streams, shapes, and the order of draws."""

import re

import numpy as np
import pytest

from fcaffe.errors import NetError
from tests.conftest import GOLDEN, make_net, net_of_layer
from tests.golden_values import assert_close

TYPES = ["LSTM", "RNN"]
STATES = {"LSTM": 2, "RNN": 1}
FILLERS = 'weight_filler { type: "uniform" min: -1 max: 1 } bias_filler { type: "uniform" min: -1 max: 1 }'


def blob_shape(*dims):
    return "input_param { shape { " + " ".join(f"dim: {dim}" for dim in dims) + " } }"


def recurrent_net(kind, steps, streams, expose=False, static=False, more=""):
    """Inputs x (steps, streams, 4), cont, [static], [h0, c0]; the layer "it" of 3 outputs with tops y, [h, c]."""
    inputs = {"x": (steps, streams, 4), "cont": (steps, streams)}
    if static:
        inputs["static"] = (streams, 2)
    tops = ["y"]
    if expose:
        names = ["h", "c"][: STATES[kind]]
        inputs.update((f"{name}0", (1, streams, 3)) for name in names)
        tops += names
    text = "force_backward: true\n"
    for name, shape in inputs.items():
        text += f'layer {{ name: "in_{name}" type: "Input" top: "{name}" {blob_shape(*shape)} }}\n'
    links = " ".join([f'bottom: "{name}"' for name in inputs] + [f'top: "{name}"' for name in tops])
    text += f'layer {{ name: "it" type: "{kind}" {links} recurrent_param {{ num_output: 3 {FILLERS} '
    return make_net(text + f"expose_hidden: {str(expose).lower()} }} }}\n" + more)


def values(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def run(net, **inputs):
    """Give the net these inputs, in their shapes; returns y."""
    for name, array in inputs.items():
        net.blob(name).reshape(*array.shape)
        net.blob(name).data[...] = array
    net.forward()
    return net.blob("y").data.copy()


def continuing(steps, streams):
    """Indicators of sequences that begin at the first step."""
    cont = np.ones((steps, streams), np.float32)
    cont[0] = 0
    return cont


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("static", [False, True])
def test_the_next_batch_continues(kind, static):
    x, cont = values(6, 2, 4), continuing(6, 2)
    more = {"static": values(2, 2)} if static else {}
    whole = run(recurrent_net(kind, 6, 2, static=static), x=x, cont=cont, **more)
    net = recurrent_net(kind, 3, 2, static=static)
    parts = [run(net, x=x[part], cont=cont[part], **more) for part in (slice(0, 3), slice(3, 6))]
    assert_close(np.concatenate(parts), whole, "y in two batches")


@pytest.mark.parametrize("kind", TYPES)
def test_exposed_states_continue_only_when_handed_on(kind):
    x, cont = values(6, 2, 4), continuing(6, 2)
    whole = run(recurrent_net(kind, 6, 2), x=x, cont=cont)
    net = recurrent_net(kind, 3, 2, expose=True)
    names = ["h", "c"][: STATES[kind]]
    begin = {f"{name}0": np.full((1, 2, 3), 9, np.float32) for name in names}  # times 0
    first = run(net, x=x[:3], cont=cont[:3], **begin)
    handed = {f"{name}0": net.blob(name).data.copy() for name in names}
    assert_close(run(net, x=x[3:], cont=cont[3:], **handed), whole[3:], "y after the states were handed on")
    zeros = {name: np.zeros_like(array) for name, array in handed.items()}
    np.testing.assert_array_equal(run(net, x=x[:3], cont=cont[:3] + 0, **zeros), first)


@pytest.mark.parametrize("kind", TYPES)
def test_streams_are_independent_and_begin_anew_at_cont_0(kind):
    x, cont = values(4, 3, 4), np.array([[0, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]], np.float32)
    y = run(recurrent_net(kind, 4, 3), x=x, cont=cont)
    for stream, begin in enumerate((0, 1, 2)):
        alone = recurrent_net(kind, 4 - begin, 1)
        part = run(alone, x=x[begin:, stream : stream + 1], cont=continuing(4 - begin, 1))
        assert_close(y[begin:, stream : stream + 1], part, f"stream {stream}")


@pytest.mark.parametrize("kind", TYPES)
def test_number_of_streams_changes(kind):
    net = recurrent_net(kind, 3, 2)
    x, cont = values(3, 4, 4), np.ones((3, 4), np.float32)
    run(net, x=x[:, :2], cont=cont[:, :2])
    fewer = run(net, x=x[:, :1], cont=cont[:, :1])  # goes on from where the first stream was
    same = recurrent_net(kind, 3, 1)
    run(same, x=x[:, :1], cont=cont[:, :1])
    assert_close(fewer, run(same, x=x[:, :1], cont=cont[:, :1]), "y of the stream that is left")
    more = run(net, x=x, cont=cont)  # memory grew: all of them begin at 0
    assert_close(more, run(recurrent_net(kind, 3, 4), x=x, cont=cont), "y of more streams")
    assert run(net, x=x[:, :0], cont=cont[:, :0]).shape == (3, 0, 3)
    net.backward()


RECURRENT = 'type: "LSTM" top: "y" recurrent_param { num_output: 3 }'
EXPOSED = 'type: "RNN" top: "y" top: "h" recurrent_param { num_output: 3 expose_hidden: true }'


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        ('type: "LSTM" top: "y"', [(3, 2, 4), (3, 2)], "num_output must be positive"),
        (RECURRENT, [(0, 2, 4), (0, 2)], "must be (time steps, streams, values ...), not (0, 2, 4)"),
        (RECURRENT, [(3, 2, 4), (2, 3)], '"x1" must have the shape (3, 2), not (2, 3)'),
        (RECURRENT, [(3, 2, 4), (3, 2), (3, 4)], "its static input must be (2 streams, values ...)"),
        (RECURRENT, [(3, 2, 4)], "takes 2 to 3 bottom"),
        (EXPOSED, [(3, 2, 4), (3, 2), (1, 3, 2)], '"x2" must have the shape (1, 2, 3), not (1, 3, 2)'),
        ('type: "LSTMUnit" top: "y" top: "z"', [(1, 2, 3), (1, 2, 9), (1, 2)], 'not "x0" (1, 2, 3) and "x1" (1, 2, 9)'),
        ('type: "LSTMUnit" top: "x0" top: "z"', [(1, 2, 3), (1, 2, 12), (1, 2)], "does not work in place"),
    ],
)
def test_errors(layer, shapes, message):
    with pytest.raises(NetError, match=re.escape(message)) as caught:
        net_of_layer(layer, *shapes)
    assert str(caught.value).startswith('layer "it"')


def test_indicators_get_no_gradient():
    net = recurrent_net("LSTM", 3, 2)
    node = net.nodes[net.layer_names.index("it")]
    assert node.bottom_need_backward == [True, False]
    node.bottom_need_backward = [True, True]
    with pytest.raises(NetError, match='cannot give "cont" a gradient'):
        node.backward()


@pytest.mark.parametrize("seed", [1, 42, 1701])
def test_a_net_draws_its_weights_as_caffe_does(seed):
    """Also what comes after the recurrent layers, which fill some parameters once for every time step."""
    with np.load(GOLDEN / "fillers" / f"fill_all_seed{seed}.npz") as golden:
        net = make_net(str(golden["prototxt"]), seed=seed)
        found = {f"{node.name}/{index}": blob.data for node in net.nodes for index, blob in enumerate(node.layer.blobs)}
        assert found.keys() == set(golden.files) - {"prototxt", "seed"}
        for key, weights in found.items():
            np.testing.assert_array_equal(weights.view(np.uint32), golden[key].view(np.uint32), err_msg=key)
