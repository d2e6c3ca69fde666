"""Converts between the state dict of a PyTorch module and the model of a net of the same architecture.

To read one, modules are sorted in the order in which torchvision's classification nets run them, and matched with the
net's layers in order: convolutions and linear layers, and separately batch normalisations. Shapes must agree. To write
one, `torch_names` gives the module of each layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model, StoredLayer
from fcaffe.net import Net
from fcaffe.net.node import Node
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.torch_names import normalized, torch_names

# Parts of names that are not in alphabetical order, at the top and within a block.
_TOP = {
    "conv1": 0,
    "bn1": 0,
    "features": 1,
    "layer1": 2,
    "layer2": 3,
    "layer3": 4,
    "layer4": 5,
    "classifier": 6,
    "fc": 7,
}
_FIRST = ("downsample", "squeeze")  # Caffe's nets have the shortcut first
_STATISTICS = ("running_mean", "running_var")
_WEIGHTED = ("Convolution", "ConvolutionDepthwise", "Deconvolution", "DepthwiseConvolution", "InnerProduct")

Arrays = Mapping[str, np.ndarray]


def model_of_state_dict(tensors: Mapping[str, Callable[[], np.ndarray]], net: Net, source: str) -> Model:
    """The model of a net with the values of a state dict, which is a mapping of functions that read tensors.

    Raises SnapshotError, which names layer and module, if their numbers or shapes differ.
    """
    modules: dict[str, dict[str, Callable[[], np.ndarray]]] = {}
    for name, read in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind != "num_batches_tracked":
            modules.setdefault(module, {})[kind] = read
    in_order = sorted(modules, key=_rank)
    normal = [name for name in in_order if _STATISTICS[0] in modules[name]]
    weighted = [name for name in in_order if _STATISTICS[0] not in modules[name]]
    blobs: dict[str, list[StoredBlob]] = {}
    followed = set(normalized(net).values())
    for node, name in _paired(net, _WEIGHTED, weighted, source):
        values = modules[name]
        if (
            node.name in followed and "bias" not in values and len(node.layer.blobs) > 1
        ):  # as the first one of ResNet-50
            values = values | {"bias": partial(np.zeros, node.layer.blobs[1].shape, np.float32)}
        blobs[node.name] = _fitted(node, name, values, ("weight", "bias"), source)
    for node, name in _paired(net, ("BatchNorm",), normal, source):
        one = {"one": lambda: np.ones(1, np.float32)}
        blobs[node.name] = _fitted(node, name, modules[name] | one, (*_STATISTICS, "one"), source)
        variance = blobs[node.name][1]
        variance.data = np.asarray(variance.data) - _more_than_torch(node)
        scale = next((other for other in net.nodes if _is_scale_of(other, node)), None)
        if scale is not None:
            blobs[scale.name] = _fitted(scale, name, modules[name], ("weight", "bias"), source)
    if left := [node.name for node in net.nodes if node.layer.blobs and node.name not in blobs]:
        raise SnapshotError(f"{source}: there are no values for the layer(s) {', '.join(left)}")
    return Model(
        pb.NetParameter(name=net.name), [StoredLayer(_param(node), blobs.get(node.name, [])) for node in net.nodes]
    )


def state_dict_of(net: Net) -> dict[str, np.ndarray]:
    """The weights of a net by torchvision's names. Raises UsageError for other architectures.

    torchvision's nets have no bias before a batch normalisation, and a fixed eps. So a bias is subtracted from the
    mean, and another eps is added to the variance.
    """
    names, before, found = torch_names(net), normalized(net), dict[str, np.ndarray]()
    numpy = net.context.engine.to_numpy
    for node in net.nodes:
        blobs = [np.ascontiguousarray(numpy(blob.data)) for blob in node.layer.blobs]
        if node.name in names and node.name not in before:
            kinds = zip(("weight", "bias"), blobs, strict=False)
            found |= {f"{names[node.name]}.{kind}": blob for kind, blob in kinds}
        elif node.name in before:
            module, (mean, variance, factor) = names[node.name], blobs
            part = 1 / factor[0] if factor[0] else np.float32(0)
            bias = found.pop(f"{names[before[node.name]]}.bias", np.float32(0))
            scale = next((other.layer.blobs for other in net.nodes if _is_scale_of(other, node)), [])
            found |= {
                f"{module}.weight": numpy(scale[0].data) if scale else np.ones_like(mean),
                f"{module}.bias": numpy(scale[1].data) if len(scale) > 1 else np.zeros_like(mean),
                f"{module}.running_mean": mean * part - bias,
                f"{module}.running_var": variance * part + _more_than_torch(node),
                f"{module}.num_batches_tracked": np.array(0, np.int64),
            }
    return found


def _more_than_torch(norm: Node) -> np.float32:
    """The difference of a BatchNorm's eps to PyTorch's."""
    more = norm.layer.param.batch_norm_param.eps - 1e-5
    return np.float32(more if abs(more) > 1e-9 else 0)


def _rank(module: str) -> list[tuple[int, Any]]:
    """A sort key for module names: numbers by value, blocks in torchvision's order of execution."""
    top, *rest = module.split(".")
    key: list[tuple[int, Any]] = [(_TOP.get(top, len(_TOP)), top)]
    for part in rest:
        words = [int(word) if word.isdecimal() else word for word in re.split(r"(\d+)", part) if word]
        key.append((0 if part in _FIRST else 1, [(isinstance(word, str), word) for word in words]))
    return key


def _paired(net: Net, types: tuple[str, ...], modules: list[str], source: str) -> list[tuple[Node, str]]:
    nodes = [node for node in net.nodes if node.layer.type in types]
    if len(nodes) != len(modules):
        raise SnapshotError(
            f"{source}: it has {len(modules)} modules for the net's {len(nodes)} layers of type {' or '.join(types)}; "
            "the architectures are not the same"
        )
    return list(zip(nodes, modules, strict=True))


def _fitted(
    node: Node, module: str, values: Mapping[str, Any], kinds: tuple[str, ...], source: str
) -> list[StoredBlob]:
    made = []
    for blob, kind in zip(node.layer.blobs, kinds, strict=False):
        array = np.asarray(values[kind](), np.float32) if kind in values else None
        if array is None or [n for n in array.shape if n != 1] != [n for n in blob.shape if n != 1]:
            found = "is missing" if array is None else f"has the shape {array.shape}"
            raise SnapshotError(
                f'{source}: {module}.{kind} {found}, and layer "{node.name}" ({node.layer.type}) wants {blob.shape}; '
                "the architectures are not the same"
            )
        made.append(StoredBlob(blob.shape, array.reshape(blob.shape)))
    if more := set(values) - {*kinds, *_STATISTICS, "weight", "bias"}:
        raise SnapshotError(f'{source}: {module} has {", ".join(more)}, which layer "{node.name}" does not have')
    if "bias" in values and "bias" in kinds[len(made) :]:
        raise SnapshotError(f'{source}: {module} has a bias, and layer "{node.name}" none')
    return made


def _is_scale_of(node: Node, norm: Node) -> bool:
    return node.layer.type == "Scale" and list(node.bottom_ids) == list(norm.top_ids)


def _param(node: Node) -> Any:
    param = pb.LayerParameter()
    param.CopyFrom(node.layer.param)
    return param
