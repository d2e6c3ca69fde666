"""Resizing of images.

Whatever the mode, a new row is a weighted sum of old rows, and so are columns. onnxruntime computes the two matrices of
weights from unit vectors. Where they repeat pixels, or interpolate between neighbours by a whole factor, a
Deconvolution does it. Otherwise two layers multiply by the matrices: a Convolution with the rows as its channels, and
an InnerProduct along the rows.
"""

from __future__ import annotations

import math

import numpy as np

from fcaffe.input_files import asking
from fcaffe.onnx.check import run_onnx
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.graph import Step, Value, reads, sizes
from fcaffe.onnx.reading.reorder import chosen

NEAR = 1e-5  # of weights, for which onnxruntime computes coordinates in float32


@reads("Resize", "Upsample")
def resize(step: Step) -> Value:
    x, how = step.x, step.node.attributes
    if len(x.shape) != 4:
        raise step.refuse(f"its input of shape {x.shape} is no image", "resize images (N, C, H, W)")
    where, policy = how.get("coordinate_transformation_mode"), how.get("keep_aspect_ratio_policy", "stretch")
    if where == "tf_crop_and_resize" or policy != "stretch":
        raise step.refuse("it crops, or keeps the aspect ratio", "slice the image before, and give the size itself")
    counts = step.list_of(3)
    given = counts or step.weights(min(2, len(step.node.inputs) - 1), "scales").tolist()
    targets = [*x.shape] if counts else [1.0] * 4
    unchanged = targets[:2]
    for axis, target in zip(how.get("axes", range(4)), given, strict=True):
        targets[step.axis(axis, x.shape)] = target
    if targets[:2] != unchanged:
        raise step.refuse("it changes the number of images or channels", "resize height and width only")
    matrices = [_matrix(step, n, target) for n, target in zip(x.shape[2:], targets[2:], strict=True)]
    found = _deconvolved(step, x, matrices)
    if found is not None:
        return found
    (height, width), linear = map(len, matrices), how.get("mode") == "linear"
    size = {"height": height, "width": width}
    if linear and where == "align_corners" and (found := step.layer_if_taken("Interp", x, interp_param=size)):
        return found
    y = step.reshape(x, (x.shape[0] * x.shape[1], x.shape[2], 1, x.shape[3]))
    p = {"num_output": height, "kernel_size": [1], "bias_term": False}
    y = step.layer("Convolution", y, blobs=[matrices[0][..., None, None]], fixed=True, convolution_param=p)
    p = {"num_output": width, "bias_term": False, "axis": 3}
    y = step.layer("InnerProduct", y, blobs=[matrices[1]], fixed=True, inner_product_param=p)
    return step.reshape(y, (*x.shape[:2], height, width))


def _matrix(step: Step, old: int, target: float) -> np.ndarray:
    """The weights (new, old) of the old positions along an axis for each new one. A float target is a scale."""
    helper, counted = onnx().helper, isinstance(target, int)
    units = step.zeros(1, old, old, 1)
    np.fill_diagonal(units[0, ..., 0], 1)
    step.net.take(math.ceil(old * abs(target if counted else old * target)))
    to = np.array([1, old, target, 1]) if counted else np.array([1, 1, target, 1], np.float32)
    how = {name: value for name, value in step.node.attributes.items() if name != "axes"}
    inputs = ["x", "to"] if len(step.node.inputs) == 2 else ["x", "none", *["none"] * counted, "to"]
    ends = [helper.make_tensor_value_info("x", 1, units.shape)], [helper.make_empty_tensor_value_info("y")]
    arrays = {"to": to, "none": np.zeros(0, np.float32)}
    constants = [onnx().numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([helper.make_node(step.op, inputs, ["y"], **how)], "resize", *ends, constants)
    opsets = [helper.make_opsetid("", step.net.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    with asking():
        made = run_onnx(model.SerializeToString(), {"x": units})["y"]
    return made[0, :, :, 0].T


def _deconvolved(step: Step, x: Value, matrices: list[np.ndarray]) -> Value | None:
    """x by a Deconvolution, and a Scale for its edges, beyond which are zeros; None if these have other weights.

    If the target takes no Scale of pixels, the edges are repeated instead, and the larger image is cropped by padding.
    """
    factors = [len(matrix) // matrix.shape[1] for matrix in matrices]
    for linear in (False, True):
        found = [windows for matrix in matrices if (windows := _windows(step, matrix, linear)) is not None]
        if len(found) < len(matrices):
            continue
        if factors == [1, 1]:
            return x
        whole = {"scale": factors[0]}
        if not linear and factors[0] == factors[1] and (y := step.layer_if_taken("Upsample", x, upsample_param=whole)):
            return y
        kernels, pads, sums = zip(*found, strict=True)
        edges, scale = np.outer(*sums), {"axis": 2, "num_axes": 2}
        if (edges != 1).any() and not step.takes("Scale", scale_param=scale):
            for axis, n in enumerate(x.shape[2:], 2):
                x = chosen(step, x, axis, [0, *range(n), n - 1])
            pads, edges = np.add(pads, factors).tolist(), np.ones(())
        weights = step.zeros(x.shape[1], 1, *map(len, kernels)) + np.outer(*kernels)
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
