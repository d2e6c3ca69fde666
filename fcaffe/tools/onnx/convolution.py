"""Convolutions, inner products and embeddings in ONNX."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.layers.convolution import Sliding
from fcaffe.layers.inner_product import InnerProduct
from fcaffe.tools.onnx.graph import Shape, Step, writes


def _images(step: Step, shape: Shape) -> Shape:
    """The shape of a blob as images (N, C, spatial...) for a layer with sliding windows."""
    layer = step.layer
    assert isinstance(layer, Sliding)
    if len(shape) - layer.axis < 2:
        raise step.refuse(f"its bottom of shape {shape} has no axes for windows to slide over")
    return (math.prod(shape[: layer.axis]), *shape[layer.axis :])


@writes("Convolution")
def convolution(step: Step) -> list[str]:
    return _slide(step, "Conv")


@writes("Deconvolution")
def deconvolution(step: Step) -> list[str]:
    return _slide(step, "ConvTranspose")


def _slide(step: Step, kind: str) -> list[str]:
    layer = step.layer
    assert isinstance(layer, Sliding)
    w, made = layer.windows, []
    for name, shape, top in zip(step.inputs, step.bottoms, step.tops, strict=True):
        images = step.reshape(name, shape, _images(step, shape))
        y = step.op(
            kind,
            images,
            *step.blobs,
            kernel_shape=w.kernel,
            strides=w.stride,
            pads=[*w.pad, *w.pad],
            dilations=w.dilation,
            group=step.param.convolution_param.group,
        )
        made.append(step.reshape(y, _images(step, top), top))
    return made


@writes("Im2col")
def im2col(step: Step) -> list[str]:
    """A convolution of each channel with one-hot kernels."""
    layer, (shape,) = step.layer, step.bottoms
    assert isinstance(layer, Sliding)
    w, images = layer.windows, _images(step, shape)
    picks = np.tile(np.eye(w.size).reshape(w.size, 1, *w.kernel), (images[1], *(1,) * (len(w.kernel) + 1)))
    y = step.op(
        "Conv",
        step.reshape(step.x, shape, images),
        step.array(picks, "picks"),
        kernel_shape=w.kernel,
        strides=w.stride,
        pads=[*w.pad, *w.pad],
        dilations=w.dilation,
        group=images[1],
    )
    return [step.reshape(y, _images(step, step.tops[0]), step.tops[0])]


@writes("InnerProduct")
def inner_product(step: Step) -> list[str]:
    layer, p = step.layer, step.param.inner_product_param
    assert isinstance(layer, InnerProduct)
    rows = step.op("Flatten", step.x, axis=layer.axis)
    y = step.op("Gemm", rows, *step.blobs, transB=int(not p.transpose))
    return [step.reshape(y, (math.prod(step.tops[0][:-1]), step.tops[0][-1]), step.tops[0])]


@writes("Embed")
def embed(step: Step) -> list[str]:
    y = step.op("Gather", step.blobs[0], step.cast(step.x, "INT64"), axis=0)
    return [step.op("Add", y, step.blobs[1]) if len(step.blobs) > 1 else y]
