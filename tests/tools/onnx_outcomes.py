"""What becomes of a model: converted with equal values, or refused with a line that names a node and the reason."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcaffe.errors import FcaffeError
from fcaffe.input_files import UnreadableError, asking
from fcaffe.onnx.check import run_net, run_onnx
from fcaffe.onnx.files import deploy_net
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.convert import from_onnx
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.target import read_target
from tests.tools.random_onnx import Graphs


def outcome(model: Any, inputs: Mapping[str, Any], wanted: Sequence[Any], path: Path, target: str = "forks") -> str:
    """ "equal", or "refused: " and the error. Raises AssertionError for anything else."""
    path.write_bytes(model.SerializeToString())
    try:
        made = from_onnx(str(path), target=read_target(target))
    except FcaffeError as problem:
        words = str(problem)
        assert "fault of fcaffe" not in words and "\n" not in words, words
        assert 'node "' in words or "cannot convert" in words or "does not depend on" in words, words
        return f"refused: {words}"
    made.net.state.phase = pb.TEST
    found = run_net(deploy_net(made.net, made.model, str(path)), inputs)
    for value, right in zip(model.graph.output, wanted, strict=True):
        size = abs(right[np.isfinite(right)]).max(initial=1)
        assert found[value.name].shape == right.shape
        np.testing.assert_allclose(found[value.name], right.astype(np.float64), 1e-3, 1e-5 * size, equal_nan=True)
    return "equal"


def node_tests() -> dict[str, tuple[Any, list[Any], list[Any]]]:
    """The models of onnx's own node tests that have a float32 input and output, with these, by name.

    A model with several inputs comes a second time, with those behind the first as constants.
    """
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of casts that overflow, which onnx computes with NumPy
        cases = collect_testcases(None)
    found = {}
    for case in cases:
        inputs, outputs = case.data_sets[0]
        ends = (
            {value.type.tensor_type.elem_type for value in case.model.graph.input},
            {value.type.tensor_type.elem_type for value in case.model.graph.output},
        )
        arrays = all(isinstance(one, (np.ndarray, np.generic)) for one in (*inputs, *outputs))
        if not arrays or not all(onnx().TensorProto.FLOAT in kinds for kinds in ends):
            continue
        found[case.name] = case.model, [np.asarray(one) for one in inputs], [np.asarray(one) for one in outputs]
        if len(inputs) > 1:
            model = onnx().ModelProto.FromString(case.model.SerializeToString())
            held = [
                onnx().numpy_helper.from_array(np.asarray(one), value.name)
                for one, value in zip(inputs, model.graph.input, strict=True)
            ]
            del model.graph.input[1:]
            model.graph.initializer.extend(held[1:])
            found[f"{case.name} with constants"] = model, [np.asarray(inputs[0])], found[case.name][2]
    return found


def inputs_of(model: Any, values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip((value.name for value in model.graph.input), values, strict=True))


def outcome_of_random_graph(seed: int, path: Path, target: str) -> str:
    """The outcome against ONNX Runtime, or "" if that does not run the model, or gives no numbers."""
    model, random = Graphs(seed).model(), np.random.default_rng(seed)
    dims = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x0": random.standard_normal(dims).astype(np.float32)}
    path.write_bytes(model.SerializeToString())
    try:
        with asking():
            wanted = list(run_onnx(path, inputs).values())
    except UnreadableError:
        return ""
    return "" if np.isnan(wanted[0]).any() else outcome(model, inputs, wanted, path, target)
