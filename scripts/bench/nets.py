"""The nets of the benchmarks: those of models/*/train_val.prototxt, and MobileNet."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mobilenet import mobilenet

MODELS = Path(__file__).resolve().parents[2] / "models"
NETS = {
    "lenet": ("lenet", (1, 28, 28)),
    "alexnet": ("alexnet", (3, 227, 227)),
    "nin": ("nin_imagenet", (3, 224, 224)),
    "googlenet": ("googlenet", (3, 224, 224)),
    "vgg16": ("vgg16", (3, 224, 224)),
    "squeezenet": ("squeezenet_v1.1", (3, 227, 227)),
    "resnet50": ("resnet50", (3, 224, 224)),
    "mobilenet": ("", (3, 224, 224)),  # of mobilenet.py
}
BETWEEN_HOSTS = {  # the nets of hosts.py
    "lenet": NETS["lenet"],
    "nin_cifar": ("nin_cifar10", (3, 32, 32)),
    "squeezenet": NETS["squeezenet"],
    "alexnet": NETS["alexnet"],
}
ALL = {**NETS, **BETWEEN_HOSTS}
# The rate is so low that no net fits its one batch: it would then multiply denormal numbers, which is slow on CPUs.
RATE, MOMENTUM, DECAY = 1e-9, 0.9, 0.0005
SOLVER = (
    f'type: "SGD" base_lr: {RATE} lr_policy: "fixed" momentum: {MOMENTUM} weight_decay: {DECAY} '
    "random_seed: 1 snapshot_after_train: false"
)


@dataclass(frozen=True)
class Cell:
    """The net, batch, kind of step and math of a table's row."""

    net: str
    batch: int
    step: str  # "training" or "inference"
    math: str

    def __str__(self) -> str:
        return f"{self.net}, batch {self.batch}, {self.step}, {self.math}"


def net_param(name: str, batch: int, training: bool) -> Any:
    """The net as a message, with Input layers for its data. At inference its last layer is a Softmax."""
    from fcaffe.net.build.filter import filter_net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.proto import parse_text, read_net

    folder, shape = ALL[name]
    text = MODELS / folder / "train_val.prototxt"
    whole = read_net(text) if folder else parse_text(mobilenet(), pb.NetParameter)
    whole.state.phase = pb.TRAIN
    whole = filter_net(whole)
    param = pb.NetParameter(name=whole.name)
    losses = [layer for layer in whole.layer if layer.type == "SoftmaxWithLoss"]
    wanted = {losses[-1].bottom[0]}  # the blobs from which the last loss is computed
    keep = []
    for layer in reversed(whole.layer):
        if layer.type == "SoftmaxWithLoss" and not training:
            continue
        if layer.bottom and layer.type != "Accuracy" and (training or wanted & set(layer.top)):
            wanted |= set(layer.bottom)
            keep.append(layer)
    tops = [("data", (batch, *shape))] + [("label", (batch,))] * training
    for top, dims in tops:
        source = param.layer.add(name=top, type="Input", top=[top])
        source.input_param.shape.add(dim=dims)
    param.layer.extend(reversed(keep))
    if not training:
        param.layer.add(name="prob", type="Softmax", bottom=[losses[-1].bottom[0]], top=["prob"])
    return param


def inference_net(name: str, batch: int, engine: Any) -> Any:
    """The net for inference on an engine, with whole passes and with weights from the fillers.

    The running statistics of BatchNorm are those of normal numbers, so that values do not grow from layer to layer.
    """
    from fcaffe import layers  # noqa: F401 - registers the types
    from fcaffe.net import Context, Net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.rng import CaffeRandom

    param = net_param(name, batch, False)
    param.state.phase = pb.TEST
    net = Net(param, Context(engine, CaffeRandom(1), noise="counter", inference=True, whole_passes=True))
    for layer in net.layers:
        if layer.type == "BatchNorm":
            for blob in layer.blobs[1:]:
                blob.data[...] = 1
    return net


def pictures(name: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images (batch, C, H, W) in float32 and class numbers (batch,)."""
    random = np.random.default_rng(1)
    spread = 0.3 if name == "lenet" else 50  # standard deviation of pixels in training; LeNet scales them to 1
    images = random.standard_normal((batch, *ALL[name][1]), np.float32)
    images *= spread
    return images, random.integers(0, 10, batch)


def plain_net(param: Any) -> Any:
    """The net on the NumPy engine, without filled weights. It tells shapes and multiply-adds."""
    from fcaffe import layers  # noqa: F401 - registers the types
    from fcaffe.engines import NumpyEngine
    from fcaffe.net import Context, Net
    from fcaffe.proto import caffe_pb2 as pb
    from fcaffe.rng import CaffeRandom

    unfilled = pb.NetParameter()
    unfilled.CopyFrom(param)
    for layer in unfilled.layer:
        for filled in (layer.convolution_param, layer.inner_product_param, layer.scale_param):
            for field in ("weight_filler", "bias_filler", "filler"):
                if field in filled.DESCRIPTOR.fields_by_name and filled.HasField(field):
                    filled.ClearField(field)
    return Net(unfilled, Context(NumpyEngine(), CaffeRandom(1), noise="counter"))


@functools.cache
def _multiply_adds(name: str, training: bool) -> tuple[int, ...]:
    """The multiply-adds of each convolution and inner product, for one image."""
    net = plain_net(net_param(name, 1, training))
    return tuple(macs for node in net.nodes if (macs := node.layer.macs(node.bottoms, node.tops)))


def flops(name: str, batch: int, training: bool) -> float:
    """Floating point operations of a step's convolutions and inner products.

    Training has three times those of inference. Only the first layer has twice, since its input needs no gradient.
    """
    macs = _multiply_adds(name, training)
    return 2.0 * batch * (3 * sum(macs) - macs[0] if training else sum(macs))
