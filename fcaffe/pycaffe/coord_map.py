"""pycaffe's `caffe.coord_map`: maps coordinates of one blob of a net spec to another, to crop one to the other.

A map is a triple (axis, scale, shift). On the axes behind `axis`, the channel axis, coordinate x of one blob is
scale * x + shift in the other. The axis is None if it does not matter. Scale and shift are numbers, or arrays with one
number for each axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fcaffe.pycaffe.net_spec import Function, Top, layers

CoordMap = tuple[int | None, Any, Any]

IDENTITY: CoordMap = (None, 1, 0)
PASS_THROUGH_LAYERS = [
    *("AbsVal", "BatchNorm", "Bias", "BNLL", "Dropout", "Eltwise", "ELU", "Log", "LRN", "Exp", "MVN", "Power"),
    *("ReLU", "PReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold"),
]
_LEGACY = {"pad_h", "pad_w", "kernel_h", "kernel_w", "stride_h", "stride_w"}
ROUNDING = 1e-6  # of a composed map


class UndefinedMapException(Exception):  # noqa: N818 - Caffe's name
    """A layer, such as an InnerProduct, has no map of coordinates."""


class AxisMismatchException(Exception):  # noqa: N818 - Caffe's name
    """Two maps cannot be composed because they begin at different axes."""


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """(axis, stride, kernel size with its dilation, padding) of a Convolution, Deconvolution, Im2col or Pooling."""
    params = fn.params.get("convolution_param", fn.params.get("pooling_param", fn.params))
    if legacy := sorted(_LEGACY & set(params)):
        raise AssertionError(f"cropping does not support legacy _h/_w params ({fn.type_name} has {', '.join(legacy)})")
    if "kernel_size" not in params:
        raise KeyError(f"kernel_size (which the {fn.type_name} layer does not have)")
    stride, kernel, dilation, pad = (
        np.array(params.get(name, default), ndmin=1)
        for name, default in (("stride", 1), ("kernel_size", 1), ("dilation", 1), ("pad", 0))
    )
    return params.get("axis", 1), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    """(axis, offset) of a Crop."""
    params = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn: Function) -> CoordMap:
    """Return the map of one layer from its bottom to its top. Raises UndefinedMapException if it has none."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, kernel, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (kernel - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, kernel, pad = conv_params(fn)
        return axis, stride, (kernel - 1) / 2 - pad
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset
    if fn.type_name in PASS_THROUGH_LAYERS:
        return IDENTITY
    raise UndefinedMapException(f"a {fn.type_name} layer has no map of coordinates")


def compose(base_map: CoordMap, next_map: CoordMap) -> CoordMap:
    """Return the map that applies `next_map`, then `base_map`. Raises AxisMismatchException."""
    axis, scale, shift = base_map
    next_axis, next_scale, next_shift = next_map
    if axis is None:
        axis = next_axis
    elif next_axis not in (None, axis):
        raise AxisMismatchException(f"one layer maps coordinates from axis {axis} on, another from axis {next_axis} on")
    return axis, scale * next_scale, scale * next_shift + shift


def inverse(coord_map: CoordMap) -> CoordMap:
    axis, scale, shift = coord_map
    return axis, 1 / scale, -shift / scale


def coord_map_from_to(top_from: Top, top_to: Top) -> CoordMap:
    """Return the map from one blob to another, through their nearest common ancestor. RuntimeError if there is none."""
    known = dict(_maps_of_ancestors(top_from))
    for ancestor, to_map in _maps_of_ancestors(top_to):
        if ancestor in known:
            return compose(to_map, inverse(known[ancestor]))
    raise RuntimeError("Could not compute map between tops; are they connected by spatial layers?")


def crop(top_from: Top, top_to: Top) -> Top:
    """Return a Crop of `top_from` to the position and size of `top_to`. AssertionError if no crop does that."""
    axis, scale, shift = coord_map_from_to(top_from, top_to)
    if not np.allclose(scale, 1, rtol=0, atol=ROUNDING):
        raise AssertionError(f"scale mismatch on crop (a = {scale})")
    if not np.all(shift <= ROUNDING):
        raise AssertionError(f"cannot crop negative offset (b = {shift})")
    if not np.allclose(np.round(shift), shift, rtol=0, atol=ROUNDING):
        raise AssertionError(f"cannot crop noninteger offset (b = {shift})")
    offset = (-np.round(np.atleast_1d(shift)).astype(int)).tolist()
    return layers.Crop(top_from, top_to, crop_param={"axis": 2 if axis is None else axis + 1, "offset": offset})


def _maps_of_ancestors(top: Top) -> Iterator[tuple[Top, CoordMap]]:
    """Yield a blob and its ancestors through layers with maps, nearest first, each with the map from it to the blob."""
    found, todo = {top}, [(top, IDENTITY)]
    for descendant, so_far in todo:
        yield descendant, so_far
        fn = descendant.fn
        bottoms = fn.inputs[:1] if fn.type_name == "Crop" else fn.inputs  # a Crop takes only the size of its second
        try:
            further = compose(so_far, coord_map(fn)) if bottoms else so_far
        except UndefinedMapException:
            continue
        for bottom in bottoms:
            if bottom not in found:
                found.add(bottom)
                todo.append((bottom, further))
