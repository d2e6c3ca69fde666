"""Resizing of images.

Whatever the mode, a new row is a weighted sum of old rows, and so are columns. Two matrices have the weights. Where
they repeat pixels, or interpolate between neighbours by a whole factor, a Deconvolution does it. Otherwise two layers
multiply by the matrices: a Convolution with the rows as its channels, and an InnerProduct along the rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.tools.onnx.reading.graph import Step, Value, reads
from fcaffe.tools.onnx.reading.windows import sizes

NEAR = 1e-6
_ROUNDING: dict[str, Any] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@reads("Resize", "Upsample")
def resize(step: Step) -> Value:
    x = step.x
    if len(x.shape) != 4:
        raise step.refuse(f"its input of shape {x.shape} is no image", "resize images (N, C, H, W)")
    scales, counts = _target(step, x)
    if counts[:2] != list(x.shape[:2]) or min(counts) < 1:
        raise step.refuse(f"it gives images of {counts}", "resize height and width only")
    size = x.shape[2:]
    matrices = [_matrix(step, old, new, scale) for old, new, scale in zip(size, counts[2:], scales[2:], strict=True)]
    if all(np.array_equal(matrix, np.eye(old)) for matrix, old in zip(matrices, size, strict=True)):
        return x
    if not any(new % old for new, old in zip(counts[2:], size, strict=True)):
        for linear in (False, True):
            filters = [Deconvolved(old, new // old, linear) for old, new in zip(size, counts[2:], strict=True)]
            if all(one.gives(matrix) for one, matrix in zip(filters, matrices, strict=True)):
                return _deconvolved(step, x, filters, linear)
    if step.net.forks and step.attribute("mode", "") == "linear" and _coordinates(step) == "align_corners":
        return step.layer("Interp", x, interp_param={"height": counts[2], "width": counts[3]})
    rows, columns = matrices
    y = step.reshape(x, (x.shape[0] * x.shape[1], size[0], 1, size[1]))
    p = {"num_output": len(rows), "bias_term": False}
    weights = rows.reshape(*rows.shape, 1, 1)
    y = step.layer("Convolution", y, blobs=[weights], fixed=True, convolution_param={**p, "kernel_size": 1})
    p = {"num_output": len(columns), "bias_term": False, "axis": 3}
    y = step.layer("InnerProduct", y, blobs=[columns], fixed=True, inner_product_param=p)
    return step.reshape(y, tuple(counts))


def _coordinates(step: Step) -> str:
    default = "half_pixel" if step.net.opset >= 11 and step.op == "Resize" else "asymmetric"
    return str(step.attribute("coordinate_transformation_mode", default))


def _target(step: Step, x: Value) -> tuple[list[float], list[int]]:
    """The scale of each axis, and its new size."""
    index = 2 if step.op == "Resize" and step.net.opset >= 11 else 1
    axes = [step.axis(axis, x.shape) for axis in step.attribute("axes", range(4))]
    scales, counts = [1.0] * 4, list(x.shape)
    if step.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise step.refuse("it keeps the aspect ratio", "give it the size itself")
    if step.has(3):
        for axis, count in zip(axes, step.list_of(3) or [], strict=True):
            scales[axis], counts[axis] = count / x.shape[axis], count
        return scales, counts
    given = step.weights(index, "scales") if step.has(index) else np.array(step.attribute("scales", []))
    for axis, value in zip(axes, given.tolist(), strict=True):
        scales[axis], counts[axis] = value, math.floor(x.shape[axis] * value + NEAR)
    return scales, counts


def _matrix(step: Step, old: int, new: int, scale: float) -> np.ndarray:
    """The weights (new, old) of the old positions for each new one."""
    matrix, i = step.zeros(new, old), np.arange(new, dtype=np.float64)
    where, mode = _coordinates(step), step.attribute("mode", "nearest")
    if where in ("half_pixel", "pytorch_half_pixel"):
        x = i * 0 if where == "pytorch_half_pixel" and new == 1 else (i + 0.5) / scale - 0.5
    elif where in ("align_corners", "asymmetric"):
        x = i / scale if where == "asymmetric" else i * (old - 1) / max(1, new - 1)
    else:
        raise step.refuse(f"it chooses pixels by {where}", "use align_corners=True or False")
    if step.attribute("antialias", 0) and scale < 1:
        raise step.refuse("it smooths what it makes smaller", "use antialias=False")
    if mode == "nearest":
        rounding = step.attribute("nearest_mode", "floor" if where == "asymmetric" else "round_prefer_floor")
        matrix[np.arange(new), np.clip(_ROUNDING[rounding](np.round(x, 6)), 0, old - 1).astype(int)] = 1
        return matrix
    low = np.floor(x)
    share = x - low
    weights = {0: 1 - share, 1: share}
    if mode == "cubic" and not step.attribute("exclude_outside", 0):
        weights = {offset: _cubic(step.attribute("cubic_coeff_a", -0.75), share - offset) for offset in (-1, 0, 1, 2)}
    elif mode != "linear":
        raise step.refuse(f"it interpolates by mode {mode}", "use bilinear or nearest")
    for offset, weight in weights.items():
        np.add.at(matrix, (np.arange(new), np.clip(low + offset, 0, old - 1).astype(int)), weight)
    return matrix


def _cubic(a: float, x: np.ndarray) -> np.ndarray:
    """The weight of a value at distance x."""
    d = np.abs(x)
    return np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)


class Deconvolved:
    """A Deconvolution along an axis of `old` values with stride `factor`: its kernel and its padding.

    It takes zeros beyond the ends, where ONNX repeats the last value. `remaining` is the sum of the weights within the
    axis, by which a result near an end has to be divided.
    """

    def __init__(self, old: int, factor: int, linear: bool) -> None:
        self.factor = factor
        size = 2 * factor - factor % 2 if linear else factor
        self.pad = factor // 2 if linear else 0
        self.kernel = 1 - np.abs(np.arange(size) - (size - 1) / 2) / factor if linear else np.ones(size)
        position = np.arange(old * factor)[:, None] + self.pad - np.arange(old) * factor
        inside = (position >= 0) & (position < size)
        self.weights = np.where(inside, self.kernel[np.clip(position, 0, size - 1)], 0)
        self.remaining = self.weights.sum(1)

    def gives(self, matrix: np.ndarray) -> bool:
        return bool(np.allclose(self.weights / self.remaining[:, None], matrix, rtol=0, atol=NEAR))


def _deconvolved(step: Step, x: Value, filters: list[Deconvolved], linear: bool) -> Value:
    rows, columns = filters
    if step.net.forks and not linear and rows.factor == columns.factor:
        return step.layer("Upsample", x, upsample_param={"scale": rows.factor})
    kernel = np.outer(rows.kernel, columns.kernel)
    weights = step.zeros(x.shape[1], 1, *kernel.shape) + kernel
    windows = {**sizes("stride", [one.factor for one in filters]), **sizes("pad", [one.pad for one in filters])}
    p = {"num_output": x.shape[1], "group": x.shape[1], **sizes("kernel", kernel.shape), **windows, "bias_term": False}
    y = step.layer("Deconvolution", x, blobs=[weights], fixed=True, convolution_param=p)
    if not linear:
        return y
    step.net.take(math.prod(y.shape[2:]))
    ends = 1 / np.outer(rows.remaining, columns.remaining)
    return step.layer("Scale", y, blobs=[ends], fixed=True, scale_param={"axis": 2, "num_axes": 2})
