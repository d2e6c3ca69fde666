"""Small nets with layers of Caffe's forks, trained for five iterations (see tests/golden/forks/README.md)."""

import re
from pathlib import Path

import numpy as np
import pytest

from fcaffe.net import layer_types
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from tests.conftest import GOLDEN, make_net
from tests.engine_choice import engine, host
from tests.golden_values import assert_close

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

BAR = 5e-5  # after five steps; the forks differ from themselves by up to 1.3e-6 with other kernels


def golden_nets() -> list[Path]:
    """Those whose layer types all exist."""
    known, found = set(layer_types()), []
    for path in sorted((GOLDEN / "forks" / "nets").glob("*.npz")):
        with np.load(path) as golden:
            types = re.findall(r' type: "([A-Z]\w*)"', f"{golden['prototxt']} {golden['test_prototxt']}")
        if known.issuperset(types):
            found.append(path)
    return found


def write_inputs(net, golden, names):
    for index, name in enumerate(golden["input_names"]):
        if name in names:
            blob = net.blob(str(name))
            blob.data[...] = blob.xp.asarray(golden[f"input_{index}"])


def blobs_of(net, names):
    layers = dict(zip(net.layer_names, net.layers, strict=True))
    return [layers[name].blobs[int(index)] for name, _, index in (str(full).rpartition("/") for full in names)]


@pytest.mark.parametrize("path", golden_nets(), ids=lambda path: path.stem)
def test_training(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with np.load(path) as file:
        golden = dict(file)
    Path("net.prototxt").write_text(str(golden["prototxt"]))
    solver = Solver(parse_text(str(golden["solver"]), pb.SolverParameter), engine())
    weights = blobs_of(solver.net, golden["weight_names"])
    for index, blob in enumerate(weights):
        blob.data[...] = blob.xp.asarray(golden[f"weight_{index}"])
    for step in range(5):
        write_inputs(solver.net, golden, golden["input_names"])
        solver.step(1)
        for index, name in enumerate(golden["output_names"]):
            assert_close(host(solver.net.blob(str(name)).data), golden[f"output_{index}"][step], str(name), BAR)
    for index, (blob, name) in enumerate(zip(weights, golden["weight_names"], strict=True)):
        assert_close(host(blob.data), golden[f"weight_after_{index}"], str(name), BAR)
    if not str(golden["test_prototxt"]):
        return
    net = make_net(str(golden["test_prototxt"]), "TEST")
    for ours, trained in zip(blobs_of(net, golden["weight_names"]), weights, strict=True):
        ours.data[...] = trained.data
    write_inputs(net, golden, golden["test_input_names"])
    net.forward()
    for index, name in enumerate(golden["test_output_names"]):
        assert_close(host(net.blob(str(name)).data), golden[f"test_output_{index}"], str(name), BAR)
