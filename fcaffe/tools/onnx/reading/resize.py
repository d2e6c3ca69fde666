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
_HALF = "half_pixel", "pytorch_half_pixel"  # the coordinates of align_corners=False
_ROUNDING: dict[str, Any] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@reads("Resize", "Upsample")
def resize(step: Step) -> Value:
    x, new = step.x, step.op == "Resize" and step.net.opset >= 11
    if len(x.shape) != 4:
        raise step.refuse(f"its input of shape {x.shape} is no image", "resize images (N, C, H, W)")
    where = step.attribute("coordinate_transformation_mode", "half_pixel" if new else "asymmetric")
    given, counts, scales = step.list_of(3), list(x.shape), [1.0] * 4
    axes = [step.axis(axis, x.shape) for axis in step.attribute("axes", range(4))]
    for axis, one in zip(axes, given or step.weights(2 if new else 1, "scales").tolist(), strict=True):
        scales[axis] = one / x.shape[axis] if given else one
        counts[axis] = one if given else math.floor(x.shape[axis] * one + NEAR)
    if counts[:2] != list(x.shape[:2]) or min(counts) < 1:
        raise step.refuse(f"it gives images of {counts}", "resize height and width only")
    if step.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise step.refuse("it keeps the aspect ratio", "give it the size itself")
    both = list(zip(x.shape[2:], counts[2:], scales[2:], strict=True))
    rows, columns = (_matrix(step, *one, where) for one in both)
    linear, factors = step.attribute("mode", "nearest") == "linear", [max(1, n // old) for old, n, _ in both]
    repeats = [np.repeat(np.eye(old), factor, axis=0) for (old, *_), factor in zip(both, factors, strict=True)]
    if np.array_equal(rows, repeats[0]) and np.array_equal(columns, repeats[1]):
        return x if factors == [1, 1] else _deconvolved(step, x, factors, linear=False)
    if linear and where in _HALF and counts[2:] == [len(repeated) for repeated in repeats]:
        return _deconvolved(step, x, factors, linear=True)
    if step.net.forks and linear and where == "align_corners":
        return step.layer("Interp", x, interp_param={"height": counts[2], "width": counts[3]})
    y = step.reshape(x, (x.shape[0] * x.shape[1], x.shape[2], 1, x.shape[3]))
    p = {"num_output": len(rows), "kernel_size": 1, "bias_term": False}
    y = step.layer("Convolution", y, blobs=[rows.reshape(*rows.shape, 1, 1)], fixed=True, convolution_param=p)
    p = {"num_output": len(columns), "bias_term": False, "axis": 3}
    y = step.layer("InnerProduct", y, blobs=[columns], fixed=True, inner_product_param=p)
    return step.reshape(y, tuple(counts))


def _matrix(step: Step, old: int, new: int, scale: float, where: str) -> np.ndarray:
    """The weights (new, old) of the old positions for each new one."""
    matrix, i, mode = step.zeros(new, old), np.arange(new, dtype=np.float64), step.attribute("mode", "nearest")
    if where in _HALF:
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


def _deconvolved(step: Step, x: Value, factors: list[int], linear: bool) -> Value:
    """Each pixel repeated, or interpolation: of zeros beyond the ends, for which a Scale makes up."""
    if step.net.forks and not linear and factors[0] == factors[1]:
        return step.layer("Upsample", x, upsample_param={"scale": factors[0]})
    lengths = [2 * factor - factor % 2 if linear else factor for factor in factors]
    pads = [(length - factor) // 2 for length, factor in zip(lengths, factors, strict=True)]
    kernels = [
        1 - np.abs(np.arange(length) - (length - 1) / 2) / factor if linear else np.ones(length)
        for length, factor in zip(lengths, factors, strict=True)
    ]
    weights = step.zeros(x.shape[1], 1, *lengths) + np.outer(*kernels)
    windows = {**sizes("kernel", lengths), **sizes("stride", factors), **sizes("pad", pads)}
    p = {"num_output": x.shape[1], "group": x.shape[1], **windows, "bias_term": False}
    y = step.layer("Deconvolution", x, blobs=[weights], fixed=True, convolution_param=p)
    if not linear:
        return y
    sums = []
    for kernel, factor, pad, n in zip(kernels, factors, pads, x.shape[2:], strict=True):
        ones = np.repeat(1.0, n)[:, None] * np.eye(1, factor)
        sums.append(np.convolve(ones.reshape(-1), kernel)[pad : pad + n * factor])
    step.net.take(math.prod(y.shape[2:]))
    return step.layer("Scale", y, blobs=[1 / np.outer(*sums)], fixed=True, scale_param={"axis": 2, "num_axes": 2})
