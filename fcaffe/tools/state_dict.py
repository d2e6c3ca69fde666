"""Converts between the state dict of a PyTorch module and the model of a net of the same architecture.

`torch_names` gives the module of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model
from fcaffe.net import Net
from fcaffe.net.node import Node
from fcaffe.net.weights import to_model
from fcaffe.proto import StoredBlob
from fcaffe.tools.torch_names import normalized, torch_names


def model_of_state_dict(tensors: Mapping[str, Callable[[], np.ndarray]], net: Net, source: str) -> Model:
    """The model of a net with the values of a state dict, which is a mapping of functions that read tensors.

    Raises UsageError for other architectures, and SnapshotError, which names layer and tensor, if one is missing or has
    another shape.
    """
    names, before, blobs = torch_names(net), normalized(net), dict[str, list[StoredBlob]]()
    left = {name for name in tensors if not name.endswith("num_batches_tracked")}

    def read(node: Node, module: str, kinds: Sequence[str]) -> list[StoredBlob]:
        found = []
        for blob, kind in zip(node.layer.blobs, kinds, strict=False):
            name = f"{module}.{kind}"
            left.discard(name)
            if name not in tensors and kind == "bias" and node.name in before.values():  # as the first of ResNet-50
                found.append(StoredBlob(blob.shape, np.zeros(blob.shape, np.float32)))
                continue
            array = np.asarray(tensors[name](), np.float32) if name in tensors else None
            if array is None or [n for n in array.shape if n != 1] != [n for n in blob.shape if n != 1]:
                shape = "is missing" if array is None else f"has the shape {array.shape}"
                raise SnapshotError(
                    f'{source}: {name} {shape}, and layer "{node.name}" ({node.layer.type}) wants {blob.shape}; the '
                    "architectures are not the same"
                )
            found.append(StoredBlob(blob.shape, array.reshape(blob.shape)))
        return found

    for node in net.nodes:
        if node.name in before:
            mean, variance = read(node, names[node.name], ("running_mean", "running_var"))
            variance.data = np.asarray(variance.data) - _more_than_torch(node)
            blobs[node.name] = [mean, variance, StoredBlob((1,), np.ones(1, np.float32))]
            if (scale := _scale_of(node, net)) is not None:
                blobs[scale.name] = read(scale, names[node.name], ("weight", "bias"))
            left -= {f"{names[node.name]}.weight", f"{names[node.name]}.bias"}  # 1 and 0 if there is no Scale
        elif node.name in names:
            blobs[node.name] = read(node, names[node.name], ("weight", "bias"))
    if left:
        raise SnapshotError(f"{source}: the net has no layer for {', '.join(sorted(left))}")
    model = to_model(net)
    for layer in model.layers:
        layer.blobs = blobs.get(layer.name, [])
    return model


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
            scaling = _scale_of(node, net)
            scale = [] if scaling is None else scaling.layer.blobs
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


def _scale_of(norm: Node, net: Net) -> Node | None:
    """The Scale behind a BatchNorm."""
    return next((n for n in net.nodes if n.layer.type == "Scale" and list(n.bottom_ids) == list(norm.top_ids)), None)
