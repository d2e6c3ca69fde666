"""Converts between the state dict of a PyTorch module and the model of a net of the same architecture.

`torch_names` gives torchvision's module of each layer of a VGG, SqueezeNet or ResNet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from fcaffe.errors import SnapshotError, UsageError
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.pooling import Pooling
from fcaffe.model_files import Model
from fcaffe.model_files.safetensors import read_content
from fcaffe.net import Blob, Net
from fcaffe.net.node import Node
from fcaffe.net.weights import to_model
from fcaffe.proto import StoredBlob


def read_state_dict(source: str, net: Net) -> Model:
    """The model of a net with the values of a state dict in a safetensors file.

    Raises UsageError for other architectures, and SnapshotError, which names layer and tensor, if one is missing or has
    another shape.
    """
    modules, before = _modules(net), normalized(net)
    tensors, model = read_content(source).tensors, to_model(net)
    blobs: dict[str, list[StoredBlob]] = {node.name: [] for node in net.nodes}
    for name, (node, blob) in modules.items():
        array = np.asarray(tensors[name], np.float32) if name in tensors else None
        if array is None and name.endswith(".bias") and node.name in before.values():  # as the first of ResNet-50
            array = np.zeros(blob.shape, np.float32)
        if array is None or [n for n in array.shape if n != 1] != [n for n in blob.shape if n != 1]:
            shape = "is missing" if array is None else f"has the shape {array.shape}"
            raise SnapshotError(
                f'{source}: {name} {shape}, and layer "{node.name}" ({node.layer.type}) wants {blob.shape}; the '
                "architectures are not the same"
            )
        if name.endswith(".running_var"):
            array = array - _more_than_torch(node)
        blobs[node.name].append(StoredBlob(blob.shape, array.reshape(blob.shape)))
    norms = {name.rpartition(".")[0] for name in modules if name.endswith(".running_var")}
    unread = {f"{norm}.{kind}" for norm in norms for kind in ("weight", "bias")}  # 1 and 0 if there is no Scale
    left = {name for name in tensors.keys() - modules.keys() - unread if not name.endswith("num_batches_tracked")}
    if left:
        raise SnapshotError(f"{source}: the net has no layer for {', '.join(sorted(left))}")
    for layer in model.layers:
        layer.blobs = blobs[layer.name] + [StoredBlob((1,), np.ones(1, np.float32))] * (layer.name in before)
    return model


def state_dict_of(net: Net) -> dict[str, np.ndarray]:
    """The weights of a net by torchvision's names. Raises UsageError for other architectures.

    torchvision's nets have no bias before a batch normalisation, and a fixed eps. So a bias is subtracted from the
    mean, and another eps is added to the variance.
    """
    names, before, numpy = torch_names(net), normalized(net), net.context.engine.to_numpy
    found = {name: np.ascontiguousarray(numpy(blob.data)) for name, (_, blob) in _modules(net).items()}
    for node in net.nodes:
        if node.name in before:
            module, factor = names[node.name], numpy(node.layer.blobs[2].data)[0]
            mean, variance = (found[f"{module}.{kind}"] for kind in ("running_mean", "running_var"))
            part = 1 / factor if factor else np.float32(0)
            bias = found.pop(f"{names[before[node.name]]}.bias", np.float32(0))
            found.setdefault(f"{module}.weight", np.ones_like(mean))
            found.setdefault(f"{module}.bias", np.zeros_like(mean))
            found |= {
                f"{module}.running_mean": mean * part - bias,
                f"{module}.running_var": variance * part + _more_than_torch(node),
                f"{module}.num_batches_tracked": np.array(0, np.int64),
            }
    return found


def _modules(net: Net) -> dict[str, tuple[Node, Blob]]:
    """The layers and blobs of tensors, by torchvision's names. Raises UsageError for other architectures."""
    names, found = torch_names(net), dict[str, tuple[Node, Blob]]()
    for node in net.nodes:
        if node.name not in names:
            continue
        parts = [(node, ("weight", "bias"))]
        if node.layer.type == "BatchNorm":
            behind = (other for other in net.nodes if other.layer.type == "Scale" and other.bottom_ids == node.top_ids)
            parts = [(scale, ("weight", "bias")) for scale in [next(behind, None)] if scale is not None]
            parts.append((node, ("running_mean", "running_var")))
        for owner, kinds in parts:
            tensors = zip(kinds, owner.layer.blobs, strict=False)
            found |= {f"{names[node.name]}.{kind}": (owner, blob) for kind, blob in tensors}
    return found


def _more_than_torch(norm: Node) -> np.float32:
    """The difference of a BatchNorm's eps to PyTorch's."""
    more = norm.layer.param.batch_norm_param.eps - 1e-5
    return np.float32(more if abs(more) > 1e-9 else 0)


_WEIGHTED = ("Convolution", "InnerProduct")
_PASSING = ("BatchNorm", "Scale", "ReLU", "Dropout", "Split", "Flatten", "Softmax")
_TYPES = (*_WEIGHTED, *_PASSING, "Input", "Pooling", "Eltwise", "Concat")

Names = dict[str, str]  # of modules, by layer


def torch_names(net: Net) -> Names:
    """The module of each convolution, inner product and batch normalisation. Raises UsageError for other nets."""
    for node in net.nodes:
        grouped = node.layer.type == "Convolution" and node.layer.param.convolution_param.group > 1
        if node.layer.type not in _TYPES or grouped:
            raise _other(f'"{node.name}" ({node.layer.type}{", with groups" if grouped else ""}) is in none of them')
    types = {node.layer.type for node in net.nodes}
    weighted = {node.name for node in net.nodes if node.layer.type in _WEIGHTED}
    if "Eltwise" in types:
        names = _resnet(net)
    elif "Concat" in types:
        names = _squeezenet(net)
    else:
        names = _vgg(net)
    for norm, convolution in normalized(net).items():
        if convolution not in names:
            raise _other(f'"{norm}" (BatchNorm) stands behind no convolution')
        head, dot, last = names[convolution].rpartition(".")  # bn1 for conv1, or the next index in a sequence
        names[norm] = head + dot + (str(int(last) + 1) if last.isdecimal() else last.replace("conv", "bn"))
    if not names.keys() >= weighted or len(set(names.values())) != len(names):
        raise _other("its layers with weights are arranged as in none of them")
    return names


def normalized(net: Net) -> dict[str, str]:
    """For each batch normalisation, the layer before it."""
    writer: dict[int, str] = {}
    found = {}
    for node in net.nodes:
        if node.layer.type == "BatchNorm":
            found[node.name] = writer[node.bottom_ids[0]]
        writer.update((i, node.name) for i in node.top_ids)
    return found


def differences(net: Net) -> Iterator[str]:
    """Yields descriptions of differences to torchvision's nets that names and shapes do not show."""
    residual = any(node.layer.type == "Eltwise" for node in net.nodes)
    windows = [(node.name, node.layer.windows) for node in net.nodes if isinstance(node.layer, Convolution)]
    for (name, one), (_, next_one) in itertools.pairwise(windows):
        if residual and one.kernel == (1, 1) and one.stride != (1, 1) and next_one.kernel == (3, 3):
            yield f"strides in 1 x 1 convolutions, such as {name}: torchvision has them in the 3 x 3 ones behind"
            break
    for node in net.nodes:
        pooled = node.layer.windows if isinstance(node.layer, Pooling) else None
        if residual and pooled is not None and (pooled.kernel, pooled.pad) == ((3, 3), (0, 0)):
            yield f"no padding in {node.name}: torchvision's has 1 on each side"
    for name, one in windows:
        if one.kernel == (1, 1) and one.pad != (0, 0):
            yield f"padding in the 1 x 1 convolution {name}: torchvision has none"


def _origins(net: Net) -> dict[str, list[str]]:
    """For each layer, the layers that computed its bottoms, without those in _PASSING."""
    maker: dict[int, str] = {}
    found = {}
    for node in net.nodes:
        found[node.name] = [maker[i] for i in node.bottom_ids]
        made_by = found[node.name][0] if node.layer.type in _PASSING else node.name
        maker.update((i, made_by) for i in node.top_ids)
    return found


def _vgg(net: Net) -> Names:
    """features: Conv2d, ReLU, with BatchNorm2d between, and MaxPool2d; classifier: Linear, ReLU, Dropout."""
    names, features, classified = Names(), 0, 0
    for node in net.nodes:
        if isinstance(node.layer, Convolution):
            if node.layer.windows.kernel != (3, 3):
                raise _other(f'"{node.name}" has windows of {node.layer.windows.kernel}, where VGG has 3 x 3')
            names[node.name] = f"features.{features}"
            features += 2
        elif node.layer.type in ("BatchNorm", "Pooling"):
            features += 1
        elif node.layer.type == "InnerProduct":
            names[node.name] = f"classifier.{3 * classified}"
            classified += 1
    return names


def _squeezenet(net: Net) -> Names:
    """features: Conv2d, ReLU, MaxPool2d, Fire; classifier: Dropout, Conv2d. A Fire is three convolutions."""
    convolutions = [node.name for node in net.nodes if node.layer.type == "Convolution"]
    names, features, fire = Names(), 0, list[str]()
    for node in net.nodes:
        if node.name == convolutions[0]:
            names[node.name], features = "features.0", 2
        elif node.name == convolutions[-1]:
            names[node.name] = "classifier.1"
        elif node.layer.type == "Pooling":
            features += 1
        elif node.layer.type == "Convolution":
            fire.append(node.name)
        elif node.layer.type == "Concat":
            parts = ("squeeze", "expand1x1", "expand3x3")
            names.update((name, f"features.{features}.{part}") for name, part in zip(fire, parts, strict=False))
            features, fire = features + 1, []
    return names


def _resnet(net: Net) -> Names:
    """conv1, layer1 to layer4 with blocks, fc. The first block of a layer has a `downsample` in its shortcut.

    A block ends with the sum of its last convolution and its shortcut.
    """
    origins = _origins(net)
    convolutions = {node.name for node in net.nodes if node.layer.type == "Convolution"}
    names, stage, number, block = Names(), 0, 0, list[str]()
    for node in net.nodes:
        if node.layer.type == "InnerProduct":
            names[node.name] = "fc"
        elif node.layer.type == "Pooling" and not stage:
            names.update((name, "conv1") for name in block)
            block = []
        elif node.layer.type == "Convolution":
            block.append(node.name)
        elif node.layer.type == "Eltwise":
            ends = [name for name in origins[node.name] if name in block]
            around = [name for name in ends if len(ends) > 1 and origins[name][0] not in convolutions]
            number += 1
            if around or not stage:
                stage, number = stage + 1, 0
            names.update((name, f"layer{stage}.{number}.downsample.0") for name in around)
            through = [name for name in block if name not in around]
            names.update((name, f"layer{stage}.{number}.conv{index + 1}") for index, name in enumerate(through))
            block = []
    return names


def _other(why: str) -> UsageError:
    return UsageError(
        f"torchvision's names are there for VGG, SqueezeNet and ResNet, and {why}. Its AlexNet and GoogLeNet are other "
        "nets than Caffe's"
    )
