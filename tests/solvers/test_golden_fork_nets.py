"""Small nets of forks' layers, trained for five iterations, against the forks' own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fcaffe.net import Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from tests.conftest import GOLDEN, make_net
from tests.engine_choice import host
from tests.golden_values import assert_close

pytestmark = pytest.mark.usefixtures("on_each_engine")

CASES = sorted((GOLDEN / "forks" / "nets").glob("*.npz"))
TOLERANCE = 5e-5
ITERATIONS = 5


def parameter(net: Net, name: str) -> Any:
    layer, index = name.rsplit("/", 1)
    return net.layers[net.layer_names.index(layer)].blobs[int(index)]


def write(blob: Any, values: np.ndarray) -> None:
    blob.reshape(*values.shape)
    blob.data[...] = blob.xp.asarray(values)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_training_is_the_forks(path, solver_from: Callable[..., Solver]) -> None:
    with np.load(path) as file:
        golden = dict(file)
    param = parse_text(str(golden["solver"]), pb.SolverParameter)
    param.ClearField("net")
    param.net_param.CopyFrom(parse_text(str(golden["prototxt"]), pb.NetParameter))
    solver = solver_from(str(param))
    for index, name in enumerate(golden["weight_names"]):
        write(parameter(solver.net, str(name)), golden[f"weight_{index}"])
    outputs: list[list[np.ndarray]] = [[] for _ in golden["output_names"]]
    for _ in range(ITERATIONS):
        for index, name in enumerate(golden["input_names"]):
            write(solver.net.blob(str(name)), golden[f"input_{index}"])
        solver.step(1)
        for values, name in zip(outputs, golden["output_names"], strict=True):
            values.append(host(solver.net.blob(str(name)).data))
    for index, name in enumerate(golden["output_names"]):
        assert_close(np.stack(outputs[index]), golden[f"output_{index}"], str(name), TOLERANCE)
    test_net = make_net(str(golden["test_prototxt"]), "TEST")
    for index, name in enumerate(golden["weight_names"]):
        trained = parameter(solver.net, str(name))
        assert_close(host(trained.data), golden[f"weight_after_{index}"], str(name), TOLERANCE)
        if name.split("/")[0] in test_net.layer_names:
            parameter(test_net, str(name)).data[...] = trained.data
    for name in golden["test_input_names"]:
        write(test_net.blob(str(name)), golden[f"input_{list(golden['input_names']).index(name)}"])
    test_net.forward()
    for index, name in enumerate(golden["test_output_names"]):
        assert_close(host(test_net.blob(str(name)).data), golden[f"test_output_{index}"], f"TEST {name}", TOLERANCE)
