"""Whole nets against BVLC Caffe: the graph that it builds, and one forward and backward pass (tests/golden/nets)."""

import json

import numpy as np
import pytest

from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.rng import CaffeRandom
from tests.conftest import GOLDEN
from tests.engine_choice import engine, host
from tests.golden_values import assert_close

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

CASES = sorted((GOLDEN / "nets").glob("*.json"))

# Gradients that are zero but for rounding, so that no two ways of adding agree, with what they are small against.
ROUNDING_ONLY = {
    ("in_place", "conv/1"): 1e-6,  # a bias in front of BatchNorm, which takes the mean off; its weights have 0.07
}


@pytest.fixture(params=CASES, ids=[path.stem for path in CASES])
def case(request):
    with np.load(request.param.with_suffix(".npz")) as values:
        return json.loads(request.param.read_text()), dict(values)


def build(graph):
    param = parse_text(graph["prototxt"], pb.NetParameter)
    upgrade_net(param, graph["prototxt"].split('"')[1])
    param.state.phase = pb.Phase.Value(graph["phase"])
    param.state.level = graph["level"]
    param.state.stage.extend(graph["stages"])
    return Net(param, Context(engine(), CaffeRandom(1)))


def test_graph(case, capsys):
    graph, _ = case
    net = build(graph)
    log = capsys.readouterr().err
    names = net.blob_names
    assert graph["layers"] == [
        {
            "name": node.name,
            "type": node.layer.type,
            "bottom": [names[i] for i in node.bottom_ids],
            "top": [names[i] for i in node.top_ids],
            "params": [list(blob.shape) for blob in node.layer.blobs],
            "needs_backward": node.needs_backward,
        }
        for node in net.nodes
    ]
    assert graph["blobs"] == [
        {"name": name, "shape": list(blob.shape)} for name, blob in zip(names, net.blobs, strict=True)
    ]
    assert graph["inputs"] == [names[i] for i in net.input_ids]
    assert graph["outputs"] == [name for name, _, _ in net.outputs()]
    assert graph["loss_weights"] == {
        name: weight for name, weight in zip(names, net.blob_loss_weights, strict=True) if weight
    }
    assert graph["sharing_log"] == [
        line.partition("] ")[2] for line in log.splitlines() if "] Sharing parameters" in line
    ]


def test_values(case):
    graph, values = case
    net = build(graph)
    blobs = dict(zip(net.blob_names, net.blobs, strict=True))
    params = {f"{node.name}/{index}": blob for node in net.nodes for index, blob in enumerate(node.layer.blobs)}
    net.parameters.flatten(*net.context.engine.xp.zeros((2, net.parameters.extent), np.float32))
    net.parameters.share()
    for key, value in values.items():
        kind, _, name = key.partition("/")
        if kind == "param":
            params[name].data[...] = params[name].xp.asarray(value)
        elif kind == "input":
            blobs[name].data[...] = blobs[name].xp.asarray(value)
    assert_close(net.forward(), values["loss"], "loss")
    net.parameters.clear_diffs()
    for key, value in values.items():
        kind, _, name = key.partition("/")
        if kind == "top_diff":
            blobs[name].diff[...] = blobs[name].xp.asarray(value)
    net.backward()
    for name, blob in blobs.items():
        assert_close(host(blob.data), values[f"data/{name}"], f"blob {name}")
        assert_close(host(blob.diff), values.get(f"diff/{name}", np.zeros(blob.shape)), f"gradient of blob {name}")
    for name, blob in params.items():
        expected = values.get(f"param_diff/{name}", np.zeros(blob.shape))
        if (net.name, name) in ROUNDING_ONLY:
            limit = ROUNDING_ONLY[net.name, name]
            assert abs(host(blob.diff)).max() < limit and abs(expected).max() < limit
            continue
        assert_close(host(blob.diff), expected, f"gradient of parameter {name}")
