"""Resizing.

Whatever the mode, a new row is a weighted sum of old rows, and so are columns. onnxruntime computes the two matrices of
weights from unit vectors. Where they repeat pixels, or interpolate between neighbours by a whole factor, a
Deconvolution does it. Otherwise two layers multiply by the matrices: a Convolution with the rows as its channels, and
an InnerProduct along the rows.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fcaffe.input_files import asking
from fcaffe.onnx.check import run_onnx
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.graph import Step, Value, sizes
from fcaffe.onnx.reading.inference import model_with
from fcaffe.onnx.reading.reorder import chosen, weighted

NEAR = 1e-5  # of weights, for which onnxruntime computes coordinates in float32


def resize(step: Step) -> Value:
    x = step.x
    how = {name: step.attribute(name) for name in _HOW if name in step.node.attributes}
    if step.net.opset < 11:
        how |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    where = how.get("coordinate_transformation_mode")
    if where == "tf_crop_and_resize":
        raise step.refuse("it crops", "slice the image before")
    step.seen.update({1, "roi", "extrapolation_value"})  # which only crops have
    counts = step.list_of(3)
    scales = step.attribute("scales") or ([] if counts else step.weights(min(2, len(step.node.inputs) - 1), "scales"))
    targets: list[float] = [*x.shape] if counts else [1.0] * len(x.shape)
    for axis, target in zip(step.attribute("axes", range(len(x.shape))), counts or scales, strict=True):
        targets[step.axis(axis, x.shape)] = target if counts else float(target)
    if where == "align_corners" and any(n * to % 1 for n, to in zip(x.shape, targets, strict=True) if not counts):
        raise step.refuse("runtimes differ in where its corners are", "give sizes, not scales")
    given = {axis: one for axis, one in enumerate(targets) if one != (x.shape[axis] if counts else 1)}
    matrices = {axis: _matrix(step, how, x.shape[axis], target) for axis, target in given.items()}
    if min(matrices, default=0) >= 2 and (found := _deconvolved(step, x, matrices)) is not None:
        return found
    for axis, matrix in matrices.items():
        x = weighted(step, x, axis, matrix)
    return x


_HOW = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode"),
    *("nearest_mode", "width_scale", "height_scale"),
)


def _matrix(step: Step, how: dict[str, Any], old: int, target: float) -> np.ndarray:
    """The weights (new, old) of the old positions along an axis for each new one. A float target is a scale."""
    helper, counted = onnx().helper, isinstance(target, int)
    units = step.zeros(1, old, old, 1)
    np.fill_diagonal(units[0, ..., 0], 1)
    step.net.take(math.ceil(old * abs(target if counted else old * target)))
    to = np.array([1, old, target, 1]) if counted else np.array([1, 1, target, 1], np.float32)
    inputs = ["x", "none", *["none"] * counted, "to"]
    arrays = {"to": to, "none": np.zeros(0, np.float32)}
    constants = [onnx().numpy_helper.from_array(array, name) for name, array in arrays.items()]
    ends = [helper.make_tensor_value_info("x", 1, units.shape)]
    model = model_with(max(step.net.opset, 11), helper.make_node("Resize", inputs, ["y"], **how), ends, constants)
    with asking():
        made = run_onnx(model.SerializeToString(), {"x": units})["y"]
    return made[0, :, :, 0].T


def _deconvolved(step: Step, x: Value, matrices: dict[int, np.ndarray]) -> Value | None:
    """x by a Deconvolution, and a Scale for its edges, beyond which are zeros; None if these have other weights.

    If the target takes no Scale of pixels, the edges are repeated instead, and the larger image is cropped by padding.
    """
    kept = np.ones(1), 0, np.ones(1)  # the windows of an axis that is not resized
    factors = [len(matrices[axis]) // n if axis in matrices else 1 for axis, n in enumerate(x.shape[2:], 2)]
    for linear in (False, True):
        windows = {axis: _windows(step, matrix, linear) for axis, matrix in matrices.items()}
        found = [windows.get(axis, kept) for axis in range(2, len(x.shape))]
        if None in windows.values():
            continue
        kernels, pads, sums = zip(*found, strict=True)
        outer = functools.partial(functools.reduce, np.multiply.outer)
        edges, scale = outer(sums), {"axis": 2, "num_axes": len(factors)}
        if (edges != 1).any() and not step.takes("Scale", scale_param=scale):
            for axis, n in enumerate(x.shape[2:], 2):
                x = chosen(step, x, axis, [0, *range(n), n - 1])
            pads, edges = np.add(pads, factors).tolist(), np.ones(())
        weights = step.zeros(x.shape[1], 1, *map(len, kernels)) + outer(kernels)
        p = {**sizes("kernel", weights.shape[2:]), **sizes("stride", factors), **sizes("pad", pads)}
        p.update(num_output=x.shape[1], group=x.shape[1], bias_term=False)
        y = step.layer("Deconvolution", x, blobs=[weights], fixed=True, convolution_param=p)
        if (edges == 1).all():
            return y
        step.net.take(edges.size)
        return step.layer("Scale", y, blobs=[1 / edges], fixed=True, scale_param=scale)
    return None


def _windows(step: Step, matrix: np.ndarray, linear: bool) -> tuple[np.ndarray, int, np.ndarray] | None:
    """The kernel and padding of a Deconvolution along an axis, and what it gives for ones, if the matrix follows."""
    new, old = matrix.shape
    factor = new // old
    length = 2 * factor - factor % 2 if linear else factor
    kernel = 1 - abs(np.arange(length) - (length - 1) / 2) / factor if linear else np.ones(length)
    pad = (length - factor) // 2
    weights = step.zeros(old * factor + 2 * pad, old)
    for index in range(old if factor else 0):
        weights[index * factor : index * factor + length, index] = kernel
    weights = weights[pad : pad + old * factor]
    sums = weights.sum(1)
    same = weights.shape == matrix.shape and np.allclose(weights / sums[:, None], matrix, atol=NEAR)
    return (kernel, pad, sums) if same else None
