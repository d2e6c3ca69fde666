"""Convolutions, inner products and embeddings in ONNX."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.onnx.writing.graph import Shape, Step, writes

_OF_WINDOWS = "kernel_size kernel_h kernel_w stride stride_h stride_w pad pad_h pad_w dilation axis force_nd_im2col"


def _images(step: Step, shape: Shape) -> Shape:
    """The shape of a blob as images (N, C, spatial...) for a layer with sliding windows."""
    layer = step.layer
    if len(shape) - layer.axis < 2:
        raise step.refuse(f"its bottom of shape {shape} has no axes for windows to slide over")
    return (math.prod(shape[: layer.axis]), *shape[layer.axis :])


@writes("Convolution", "Deconvolution")
def convolution(step: Step) -> list[str]:
    step.layer_has(convolution_param=f"num_output bias_term {_OF_WINDOWS}")
    kind = "ConvTranspose" if step.layer.type == "Deconvolution" else "Conv"
    group = step.param.convolution_param.group
    ends = zip(step.inputs, step.bottoms, step.tops, strict=True)
    return [_windows(step, kind, *one, *step.blobs, group=group) for one in ends]


@writes("Im2col")
def im2col(step: Step) -> str:
    """A convolution of each channel with one-hot kernels."""
    step.layer_has(convolution_param=f"num_output bias_term group {_OF_WINDOWS}")
    w, (shape,), (top,) = step.layer.windows, step.bottoms, step.tops
    channels = _images(step, shape)[1]
    picks = np.tile(np.eye(w.size).reshape(w.size, 1, *w.kernel), (channels, *(1,) * (len(w.kernel) + 1)))
    return _windows(step, "Conv", step.x, shape, top, step.array(picks, "picks"), group=channels)


def _windows(step: Step, kind: str, x: str, shape: Shape, top: Shape, *weights: str, group: int) -> str:
    """An operator with the layer's windows, on images."""
    w = step.layer.windows
    y = step.op(
        kind,
        step.reshape(x, shape, _images(step, shape)),
        *weights,
        kernel_shape=w.kernel,
        strides=w.stride,
        pads=[*w.pad, *w.pad],
        dilations=w.dilation,
        group=group,
    )
    return step.reshape(y, _images(step, top), top)


@writes("InnerProduct")
def inner_product(step: Step) -> str:
    layer, p, blobs = step.layer, step.param.inner_product_param, list(step.blobs)
    step.layer_has(inner_product_param="num_output bias_term axis")
    rows = step.op("Flatten", step.x, axis=layer.axis)
    if p.normalize:
        layer.normalize_weights()
        blobs[0] = step.array(layer.engine.to_numpy(layer.blobs[0].data), "normalized")
    y = step.op("Gemm", rows, *blobs, transB=int(not p.transpose))
    return step.reshape(y, (math.prod(step.tops[0][:-1]), step.tops[0][-1]), step.tops[0])


@writes("Embed")
def embed(step: Step) -> str:
    step.layer_has(embed_param="input_dim num_output bias_term")
    y = step.op("Gather", step.blobs[0], step.cast(step.x, "INT64"), axis=0)
    return step.op("Add", y, step.blobs[1]) if len(step.blobs) > 1 else y
