"""Runs a net and its ONNX file on the same inputs, and compares the outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import UsageError
from fcaffe.net import Net
from fcaffe.onnx.library import onnx, onnxruntime
from fcaffe.onnx.writing.preprocessing import Preprocessing

ALLOWED = 1e-4  # of the spread of the values: float32 rounding of a deep net
_DECIDES = {"Softmax", "LogSoftmax", "Sigmoid", "TanH", "Tanh"}  # operators and types whose values may be saturated


@dataclass(frozen=True)
class Difference:
    """The difference of an output: the largest |ours - theirs|, the largest |ours|, and max(ours) - min(ours).

    It is infinite where values are not finite on one side only.
    """

    output: str
    largest: float
    magnitude: float
    spread: float

    def too_far(self, allowed: float = ALLOWED) -> bool:
        """Whether it exceeds a part of the spread. Rounding may take a tenth of that part of the magnitude."""
        return not self.largest <= allowed * (self.spread + self.magnitude / 10)


def random_inputs(net: Net, seed: int = 0) -> dict[str, np.ndarray]:
    """Normally distributed values for every input of a net, by name; regions in the maps where a layer reads them."""
    random = np.random.default_rng(seed)
    inputs = {net.blob_names[i]: random.standard_normal(net.blobs[i].shape).astype(np.float32) for i in net.input_ids}
    for node in net.nodes:
        random_regions = getattr(node.layer, "random_regions", None)  # what a layer that reads regions may define
        if random_regions is not None and node.layer.bottom_names[1] in inputs:
            inputs[node.layer.bottom_names[1]] = random_regions(random, node.bottoms)
    return inputs


def run_net(
    net: Net, inputs: Mapping[str, np.ndarray], preprocessing: Preprocessing | None = None
) -> dict[str, np.ndarray]:
    """Run a net. `preprocessing` is applied to the first image input.

    Raises UsageError for inputs whose names or shapes are not the net's.
    """
    pending = preprocessing
    for i in net.input_ids:
        name, blob = net.blob_names[i], net.blobs[i]
        if name not in inputs:
            raise UsageError(f'there are no values for the input "{name}"; the given ones are {", ".join(inputs)}')
        values = np.asarray(inputs[name], np.float32)
        if values.shape != blob.shape:
            raise UsageError(f'values of shape {values.shape} are given for the input "{name}" of shape {blob.shape}')
        if pending is not None and values.ndim == 4:
            values, pending = pending.apply(values), None
        blob.data[...] = blob.xp.asarray(values)
    net.forward()
    return {
        name: array_of(net, index)
        for name, index in zip((name for name, *_ in net.outputs()), net.output_ids, strict=True)
    }


def array_of(net: Net, index: int) -> np.ndarray:
    """A copy of the values of a blob."""
    return np.array(net.context.engine.to_numpy(net.blobs[index].data))


def behind_outputs(net: Net) -> dict[str, int]:
    """The blobs that the Softmax or Sigmoid of an output reads, by a description."""
    last = {index: node for node in net.nodes for index in node.top_ids}
    found = {index: last[index] for index in net.output_ids if index in last}
    return {
        _described(net.blob_names[index], node.layer.type): node.bottom_ids[0]
        for index, node in found.items()
        if node.layer.type in _DECIDES and node.bottom_ids[0] != index
    }


def behind_onnx(path: str, outputs: Sequence[str] = ()) -> dict[str, str]:
    """The values that the Softmax or Sigmoid of an output of an ONNX file reads, by a description."""
    graph = onnx().load(path, load_external_data=False).graph
    makers = {name: node for node in graph.node for name in node.output}
    named = {name: makers[name] for name in outputs or [one.name for one in graph.output] if name in makers}
    return {
        _described(name, node.op_type.replace("Tanh", "TanH")): node.input[0]
        for name, node in named.items()
        if node.op_type in _DECIDES
    }


def _described(output: str, kind: str) -> str:
    return f"{output} before its {kind}"


def run_onnx(
    path: str | os.PathLike[str] | bytes, inputs: Mapping[str, np.ndarray], inner: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Run an ONNX file, or the bytes of one, in onnxruntime on the CPU. Inputs of other names are matched by order.

    Returns the outputs, and the values `inner` of the graph, by name.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised, and its warnings are about constants that it could fold
    model: str | bytes = os.fspath(path)
    if inner:
        loaded = onnx().load(model)
        known = {value.name for value in (*loaded.graph.input, *loaded.graph.output)}
        loaded.graph.output.extend(onnx().ValueInfoProto(name=name) for name in inner if name not in known)
        model = loaded.SerializeToString()
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {given.name: _dtype(given.type) for given in session.get_inputs()}
    named = dict(zip(types, inputs.values(), strict=False)) if types.keys() - inputs.keys() else inputs
    feed = {name: np.asarray(named[name], dtype, order="C") for name, dtype in types.items()}
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, feed), strict=True))


def _dtype(kind: str) -> np.dtype[Any]:
    """The type of `tensor(float16)`, say."""
    name = kind[kind.find("(") + 1 : -1]
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


def differences(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray | None]) -> list[Difference]:
    """The differences of all outputs. Outputs of other names are matched by their order."""
    others = theirs if ours.keys() == theirs.keys() else dict(zip(ours, theirs.values(), strict=False))
    return [_difference(name, values, others.get(name)) for name, values in ours.items()]


def _difference(name: str, ours: np.ndarray, theirs: np.ndarray | None) -> Difference:
    finite = ours[np.isfinite(ours)].astype(np.float64)
    magnitude = float(abs(finite).max(initial=0))
    spread = float(finite.max() - finite.min()) if finite.size > 1 else magnitude
    if theirs is None or theirs.shape != ours.shape:
        return Difference(name, float("inf"), magnitude, spread)
    with np.errstate(invalid="ignore"):
        distance = np.abs(ours.astype(np.float64) - theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    largest = float(np.where(same, 0, np.where(np.isnan(distance), np.inf, distance)).max(initial=0))
    return Difference(name, largest, magnitude, spread)
