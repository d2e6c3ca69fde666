"""Checks that a converted file, or net, computes the same as its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fcaffe import log
from fcaffe.input_files import asking
from fcaffe.model_files import read_model
from fcaffe.net import Net
from fcaffe.onnx import check
from fcaffe.onnx.check import Difference, array_of, differences
from fcaffe.onnx.files import deploy_net
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.convert import Converted
from fcaffe.onnx.weights import read_weights
from fcaffe.onnx.writing.preprocessing import Preprocessing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import read_net_for
from fcaffe.tools.numpy_files import load_numpy

ALLOWED_FP16 = 1e-2  # where ONNX Runtime computes in float16
RANDOM = 2  # random inputs
too_far = Difference.too_far


def compare(
    source: str,
    target: str,
    net: str | None = None,
    preprocessing: Preprocessing | None = None,
    inputs: Sequence[str] = (),
) -> dict[str, Difference]:
    """Compare two model or ONNX files: by the outputs of their net, a prototxt, or without a net by their blobs.

    The inputs are random values, and those of the files `inputs`. `preprocessing` is the one in the ONNX file. What a
    Softmax or Sigmoid of an output reads is compared, too. Returns for each input, by its description, the output or
    blob that differs most. Raises SnapshotError or UsageError if a
    file cannot be read or does not fit the net.
    """
    if net is None:
        blobs, others = _blobs(source), _blobs(target)
        return _worst({"weights": differences(blobs, {name: others.get(name) for name in blobs})})
    param = read_net_for(net, pb.TEST)
    with log.quiet():
        models = [path for path in (source, target) if not path.endswith(".onnx")]
        nets = {path: deploy_net(param, read_model(path), path) for path in models}
        first = nets[models[0]] if models else deploy_net(param)
    random = {f"random values {seed}": check.random_inputs(first, seed) for seed in range(RANDOM)}
    found = {}
    for what, values in (random | {path: read_inputs(path, [*random["random values 0"]]) for path in inputs}).items():
        sides = [_values(path, nets.get(path), values, preprocessing) for path in (source, target)]
        both = [key for key in sides[0][1] if key in sides[1][1]]
        found[what] = differences(*(outputs | {key: behind[key] for key in both} for outputs, behind in sides))
    warn_of_constants(list(found.values()))
    return _worst(found)


def _values(
    path: str, net: Net | None, inputs: Mapping[str, np.ndarray], preprocessing: Preprocessing | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The outputs of a net, or of the ONNX file at `path`, and what their Softmax or Sigmoid reads."""
    if net is not None:
        outputs = check.run_net(net, inputs, preprocessing)
        return outputs, {key: array_of(net, index) for key, index in check.behind_outputs(net).items()}
    behind = check.behind_onnx(path)
    outputs = check.run_onnx(path, inputs, [*behind.values()])
    inner = {key: outputs[name] for key, name in behind.items()}
    return {name: values for name, values in outputs.items() if name not in behind.values()}, inner


def warn_of_constants(runs: Sequence[Sequence[Difference]]) -> None:
    """Warn of outputs with equal values, which a comparison says nothing of."""
    for each in zip(*runs, strict=True):
        if all(one.spread == 0 for one in each):
            log.warning(
                f"all values of {each[0].output} are {each[0].magnitude:g}: nothing was compared; give inputs by "
                "--input for which they differ"
            )


def _worst(found: Mapping[str, list[Difference]]) -> dict[str, Difference]:
    return {what: max(ones, key=lambda one: (one.too_far(), one.largest)) for what, ones in found.items() if ones}


def _blobs(path: str) -> dict[str, np.ndarray]:
    model = read_weights(path) if path.endswith(".onnx") else read_model(path)
    named = ((f"{layer.name}/{index}", blob) for layer in model.layers for index, blob in enumerate(layer.blobs))
    return {name: blob.data for name, blob in named if blob.data is not None}


def read_inputs(path: str, names: list[str]) -> Mapping[str, np.ndarray]:
    """Read the arrays of a .npz by name, or the array of a .npy as the first input."""
    content = load_numpy(path, "inputs, which are a .npy or .npz", several=True)
    return content if isinstance(content, dict) else {names[0]: content}


def check_net(path: str, made: Converted, files: Sequence[str] = ()) -> tuple[list[Difference], str]:
    """Compare the net that an ONNX file was converted to with the file, on random values and on files with inputs.

    Returns:
        The largest difference of each output over all inputs. The name of the first layer whose top differs, or "" if
        no output does.
    """
    net = deploy_net(made.net, made.model, path)
    constants = onnx().load(path, load_external_data=False).graph.initializer
    half = any(tensor.data_type == onnx().TensorProto.FLOAT16 for tensor in constants)
    allowed = ALLOWED_FP16 if half else check.ALLOWED
    inputs: list[Mapping[str, np.ndarray]] = [_random(net, made, seed) for seed in range(RANDOM)]
    inputs += [read_inputs(name, list(inputs[0])) for name in files]
    ends = made.ends or [name for name, *_ in net.outputs()]
    index_of = {made.values.get(name, name): index for index, name in enumerate(net.blob_names)}
    behind = {key: name for key, name in check.behind_onnx(path, ends).items() if name in index_of}
    runs: list[list[Difference]] = []
    for given in inputs:
        with asking():
            theirs = check.run_onnx(path, given, [*ends, *behind.values()])
        ours = check.run_net(net, given) | {key: array_of(net, index_of[name]) for key, name in behind.items()}
        wanted = {name: theirs[name] for name in ends}
        wanted |= {key: theirs[name].reshape(ours[key].shape) for key, name in behind.items()}
        runs.append(differences(wanted, ours))
        if any(one.too_far(allowed) for one in runs[-1]):
            return runs[-1], _first_difference(path, net, made, given, allowed)
    warn_of_constants(runs)
    return [max(each, key=lambda one: one.largest) for each in zip(*runs, strict=True)], ""


def _random(net: Net, made: Converted, seed: int) -> dict[str, np.ndarray]:
    """Random inputs of the types that the ONNX file declares. Indices are within the tables that Embed has."""
    values, random = check.random_inputs(net, seed), np.random.default_rng(seed)
    tables = [node.layer.param.embed_param.input_dim for node in net.nodes if node.layer.type == "Embed"]
    blob_of = {name: blob for blob, name in made.values.items()}
    for name, kind in ((blob_of.get(name, name), kind) for name, kind in made.types.items()):
        dtype = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(kind))
        if dtype.kind == "f":
            values[name] = values[name].astype(dtype).astype(np.float32)
        else:
            whole = dtype.kind in "iu" and dtype.itemsize < 4  # pixels, say
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if whole else (0, min(tables, default=2))
            values[name] = random.integers(low, high, values[name].shape).astype(np.float32)
    return values


def _first_difference(path: str, net: Net, made: Converted, inputs: Mapping[str, np.ndarray], allowed: float) -> str:
    """The name of the first layer with a top that differs. The net has run on these inputs."""
    theirs = check.run_onnx(path, inputs, list(made.values.values()))
    for node in net.nodes:
        for index in node.top_ids:
            value, ours = theirs.get(made.values.get(net.blob_names[index], "")), array_of(net, index)
            if value is None or value.size != ours.size or node.layer.type == "Split":
                continue
            (one,) = differences({"": value.reshape(ours.shape).astype(np.float32)}, {"": ours})
            if one.too_far(allowed):
                return node.name
    return net.nodes[-1].name
