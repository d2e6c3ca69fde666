"""Runs a net and its ONNX file on the same inputs, and compares the outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fcaffe.errors import UsageError
from fcaffe.net import Net
from fcaffe.onnx.library import onnx, onnxruntime
from fcaffe.onnx.preprocessing import Preprocessing

_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float16)": np.float16}  # of inputs


@dataclass(frozen=True)
class Difference:
    """The difference of an output: the largest |ours - theirs|, and the largest |ours|.

    It is infinite where values are not finite on one side only.
    """

    output: str
    largest: float
    magnitude: float


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
    to_numpy = net.context.engine.to_numpy
    return {name: np.array(to_numpy(blob.data)) for name, blob, _ in net.outputs()}


def run_onnx(
    path: str | os.PathLike[str] | bytes, inputs: Mapping[str, np.ndarray], inner: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Run an ONNX file, or the bytes of one, in onnxruntime on the CPU. Inputs of other names are matched by order.

    Returns the outputs, and the values `inner` of the graph, by name.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # its warnings are about constants that it could fold
    model: str | bytes = os.fspath(path)
    if inner:
        loaded = onnx().load(model)
        known = {value.name for value in (*loaded.graph.input, *loaded.graph.output)}
        loaded.graph.output.extend(onnx().ValueInfoProto(name=name) for name in inner if name not in known)
        model = loaded.SerializeToString()
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {given.name: _TYPES.get(given.type, np.float32) for given in session.get_inputs()}
    named = dict(zip(types, inputs.values(), strict=False)) if types.keys() - inputs.keys() else inputs
    feed = {name: np.ascontiguousarray(named[name], dtype) for name, dtype in types.items()}
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, feed), strict=True))


def differences(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray | None]) -> list[Difference]:
    """The differences of all outputs. Outputs of other names are matched by their order."""
    others = theirs if ours.keys() == theirs.keys() else dict(zip(ours, theirs.values(), strict=False))
    return [Difference(name, _largest(values, others.get(name)), _magnitude(values)) for name, values in ours.items()]


def _largest(ours: np.ndarray, theirs: np.ndarray | None) -> float:
    if theirs is None or theirs.shape != ours.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        distance = np.abs(ours.astype(np.float64) - theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return float(np.where(same, 0, np.where(np.isnan(distance), np.inf, distance)).max(initial=0))


def _magnitude(values: np.ndarray) -> float:
    return float(np.abs(values, where=np.isfinite(values), out=np.zeros_like(values)).max(initial=0))
