"""Names of torchvision's modules for the layers of a VGG, SqueezeNet or ResNet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fcaffe.errors import UsageError
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.pooling import Pooling
from fcaffe.net import Net

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
        names[norm] = _norm_module(names[convolution])
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


def _norm_module(module: str) -> str:
    """The batch normalisation behind a module: bn1 for conv1, or the next index in a sequence."""
    head, dot, last = module.rpartition(".")
    return head + dot + (str(int(last) + 1) if last.isdecimal() else last.replace("conv", "bn"))


def _other(why: str) -> UsageError:
    return UsageError(
        f"torchvision's names are there for VGG, SqueezeNet and ResNet, and {why}. Its AlexNet and GoogLeNet are other "
        "nets than Caffe's"
    )
