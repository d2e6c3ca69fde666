"""Well-known nets with layers of Caffe's forks, for small images, written as scripts for pycaffe write nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fcaffe.pycaffe.net_spec import layers as L  # noqa: N812 - pycaffe's usual name
from fcaffe.pycaffe.net_spec import to_proto

BATCH, CLASSES = 2, 4
MSRA = {"type": "msra"}


def data(size: int, *label: int) -> tuple[Any, Any]:
    """Images of noise and labels of class numbers, of the shape (BATCH, *label)."""
    images, labels = L.DummyData(
        shape=[{"dim": [BATCH, 3, size, size]}, {"dim": [BATCH, *label]}],
        data_filler=[{"type": "gaussian"}, {"type": "uniform", "min": 0, "max": CLASSES - 0.01}],
        ntop=2,
    )
    return images, labels


def conv(x: Any, outputs: int, kernel: int = 1, kind: str = "Convolution", **more: Any) -> Any:
    pad = more.get("dilation", 1) * (kernel // 2)
    return getattr(L, kind)(
        x, convolution_param={"num_output": outputs, "kernel_size": kernel, "pad": pad, "weight_filler": MSRA, **more}
    )


def batch_norm(x: Any) -> Any:
    return L.Scale(L.BatchNorm(x, in_place=True), in_place=True, bias_term=True)


def slope_bn(x: Any) -> Any:
    return L.BN(x, in_place=True, slope_filler={"type": "constant", "value": 1}, momentum=0.95)


def scale_bn(x: Any) -> Any:
    return L.BN(x, in_place=True, scale_filler={"type": "constant", "value": 1}, shift_filler={"value": 0.001})


def unit(x: Any, outputs: int, kernel: int = 1, norm: Any = batch_norm, relu: str = "ReLU", **more: Any) -> Any:
    """Convolution, normalisation, and an activation unless `relu` is empty."""
    y = norm(conv(x, outputs, kernel, bias_term=False, **more))
    return getattr(L, relu)(y, in_place=True) if relu else y


def classified(x: Any, labels: Any) -> Any:
    pooled = L.Pooling(x, pool=1, global_pooling=True)
    return L.SoftmaxWithLoss(L.InnerProduct(pooled, num_output=CLASSES, weight_filler=MSRA), labels)


def mobilenet_v1() -> Any:
    x, labels = data(32)
    x = unit(x, 32, 3, stride=2)
    for outputs, stride in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2)]:
        x = unit(x, 1, 3, kind="ConvolutionDepthwise", stride=stride)  # num_output is not read
        x = unit(x, outputs)
    return classified(x, labels)


def mobilenet_v2() -> Any:
    x, labels = data(32)
    x, channels = unit(x, 32, 3, relu="ReLU6", stride=2), 32
    for factor, outputs, count, stride in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]:
        for number in range(count):
            wide = factor * channels
            y = unit(x, wide, relu="ReLU6")
            first = stride if number == 0 else 1
            y = unit(y, wide, 3, kind="DepthwiseConvolution", relu="ReLU6", group=wide, stride=first)
            y = unit(y, outputs, relu="")
            x, channels = (L.Eltwise(x, y) if number else y), outputs
    return classified(unit(x, 320, relu="ReLU6"), labels)


def shufflenet_v1(groups: int = 3) -> Any:
    x, labels = data(64)
    x, channels = L.Pooling(unit(x, 24, 3, stride=2), kernel_size=3, stride=2), 24
    for outputs, count in (240, 4), (480, 8), (960, 4):
        for number in range(count):
            narrow, wide = outputs // 4, outputs - channels if number == 0 else outputs
            y = unit(x, narrow, group=1 if channels == 24 else groups)
            y = L.ShuffleChannel(y, group=groups)
            y = unit(y, narrow, 3, kind="ConvolutionDepthwise", relu="", stride=1 if number else 2)
            y = unit(y, wide, relu="", group=groups)
            x = L.Eltwise(x, y) if number else L.Concat(L.Pooling(x, pool=1, kernel_size=3, stride=2), y)
            x, channels = L.ReLU(x, in_place=True), outputs
    return classified(x, labels)


def se_resnet() -> Any:
    x, labels = data(32)
    x, channels = L.Pooling(unit(x, 64, 7, stride=2), kernel_size=3, stride=2), 64
    for stage, count in enumerate((1, 2, 2, 1)):
        outputs = 256 << stage
        for number in range(count):
            stride = 2 if number == 0 and stage else 1
            y = unit(unit(x, outputs // 4, stride=stride), outputs // 4, 3)
            y = unit(y, outputs, relu="")
            squeezed = L.ReLU(conv(L.Pooling(y, pool=1, global_pooling=True), outputs // 16), in_place=True)
            factors = L.Sigmoid(conv(squeezed, outputs), in_place=True)
            shortcut = x if channels == outputs else unit(x, outputs, relu="", stride=stride)
            x, channels = L.ReLU(L.Axpy(factors, y, shortcut), in_place=True), outputs
    return classified(x, labels)


def segmented(x: Any, labels: Any) -> Any:
    """SegNet's loss."""
    weights = {"weight_by_label_freqs": True, "ignore_label": 11, "class_weighting": [0.3, 1, 2, 0.7]}
    return L.SoftmaxWithLoss(x, labels, loss_param=weights)


def segnet() -> Any:
    """Two convolutions a stage, as SegNet-Basic's larger form; three stages."""
    x, labels = data(45, 1, 45, 45)
    masks, sizes = [], [45, 23, 12]
    for outputs in 16, 32, 64:
        x = unit(unit(x, outputs, 3, norm=scale_bn), outputs, 3, norm=scale_bn)
        x, mask = L.Pooling(x, kernel_size=2, stride=2, ntop=2)
        masks.append(mask)
    for outputs, mask, size in zip((32, 16, 16), reversed(masks), reversed(sizes), strict=True):
        odd = size % 2 == 1
        x = L.Upsample(x, mask, upsample_param={"scale": 2, "pad_out_h": odd, "pad_out_w": odd})
        x = L.Dropout(unit(x, outputs, 3, norm=scale_bn), in_place=True, sample_weights_test=True)
    return segmented(conv(x, CLASSES, 3), labels)


def enet() -> Any:
    """Bottlenecks that go down by pooling with a mask, stay (dilated, asymmetric), and go up by the mask."""
    x, labels = data(32, 1, 32, 32)

    def bottleneck(x: Any, outputs: int, middle: Callable[[Any], Any], shortcut: Any) -> Any:
        y = unit(middle(x), outputs, norm=scale_bn, relu="")
        return L.PReLU(L.Eltwise(shortcut, L.Dropout(y, in_place=True)), in_place=True)

    def down(x: Any) -> Any:
        return unit(unit(x, 16, 2, norm=scale_bn, relu="PReLU", stride=2, pad=0), 16, 3, norm=scale_bn, relu="PReLU")

    def dilated(x: Any) -> Any:
        return unit(unit(x, 16, norm=scale_bn, relu="PReLU"), 16, 3, norm=scale_bn, relu="PReLU", dilation=2)

    def up(x: Any) -> Any:
        y = unit(x, 16, norm=scale_bn, relu="PReLU")
        y = conv(y, 16, 2, kind="Deconvolution", stride=2, pad=0)
        return L.PReLU(scale_bn(y), in_place=True)

    x = L.PReLU(scale_bn(L.Concat(conv(x, 13, 3, stride=2), L.Pooling(x, kernel_size=2, stride=2))), in_place=True)
    pooled, mask = L.Pooling(x, kernel_size=2, stride=2, ntop=2)
    x = bottleneck(x, 64, down, conv(pooled, 64))
    x = bottleneck(x, 64, dilated, x)
    x = bottleneck(x, 16, up, L.Upsample(conv(x, 16), mask, upsample_param={"scale": 2}))
    return segmented(conv(x, CLASSES, 2, kind="Deconvolution", stride=2, pad=0), labels)


def pspnet() -> Any:
    """Dilated residual blocks, a pyramid of pools that Interp brings to one size, and Interp by a zoom factor."""
    size = 57
    x, labels = data(size, 1, size, size)
    x = unit(unit(x, 16, 3, norm=slope_bn, stride=2), 32, 3, norm=slope_bn)
    x = L.Pooling(x, kernel_size=3, stride=2, pad=1)
    for outputs, stride, dilation in (64, 1, 1), (128, 2, 1), (128, 1, 2), (256, 1, 4):
        y = unit(x, outputs // 4, norm=slope_bn, stride=stride)
        y = unit(y, outputs // 4, 3, norm=slope_bn, dilation=dilation)
        y = unit(y, outputs, norm=slope_bn, relu="")
        x = L.ReLU(L.Eltwise(unit(x, outputs, norm=slope_bn, relu="", stride=stride), y), in_place=True)
    pools = [L.Pooling(x, pool=1, kernel_size=k, stride=k) for k in (8, 4, 2)]
    levels = [L.Interp(unit(pool, 64, norm=slope_bn), height=8, width=8) for pool in pools]
    x = L.Dropout(unit(L.Concat(x, *levels), 64, 3, norm=slope_bn), in_place=True)
    return L.SoftmaxWithLoss(L.Interp(conv(x, CLASSES), zoom_factor=8), labels)


def sphereface_20() -> Any:
    x, labels = data(32)
    for outputs, units in (64, 1), (128, 2), (256, 4), (512, 1):
        x = L.PReLU(conv(x, outputs, 3, stride=2), in_place=True)
        for _ in range(units):
            y = L.PReLU(conv(x, outputs, 3), in_place=True)
            x = L.Eltwise(x, L.PReLU(conv(y, outputs, 3), in_place=True))
    features = L.InnerProduct(x, num_output=512, weight_filler={"type": "xavier"})
    schedule = {"type": 3, "base": 1000, "gamma": 0.12, "power": 1, "lambda_min": 5}  # QUADRUPLE
    scores, _ = L.MarginInnerProduct(
        features,
        labels,
        ntop=2,
        margin_inner_product_param={"num_output": CLASSES, "weight_filler": {"type": "xavier"}, **schedule},
    )
    center = L.CenterLoss(features, labels, num_output=CLASSES, loss_weight=0.008)
    return L.SoftmaxWithLoss(scores, labels), center


NETS = {
    "MobileNet v1": mobilenet_v1,
    "MobileNet v2": mobilenet_v2,
    "ShuffleNet v1": shufflenet_v1,
    "SE-ResNet": se_resnet,
    "SegNet": segnet,
    "ENet": enet,
    "PSPNet": pspnet,
    "SphereFace-20": sphereface_20,
}


def net(name: str) -> Any:
    """The NetParameter."""
    tops = NETS[name]()
    return to_proto(*(tops if isinstance(tops, tuple) else (tops,)))
