"""Operators that move or keep values: shapes, transpositions, slices, padding, repetition.

BVLC Caffe has no layer that transposes, but Im2col does. For a bottom (N, C, A, B T), windows of 1 x B with dilation T
give (N, C B, A, T): out[n, c B + b, a, t] = in[n, c, a, b T + t]. The block of B moves before the axis A. Nothing is
computed, and every transposition is a sequence of such moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from fcaffe.onnx.reading.graph import MOST_PIECES, Shape, Step, Value, sizes
from fcaffe.proto import caffe_pb2 as pb

_BITS = {9: 1, 3: 7, 2: 8, 5: 15, 4: 16, 6: 31, 12: 32, 7: 63, 13: 64}  # of a value, by ONNX's numbers of types
_UNSIGNED = {9, 2, 4, 12, 13}

# --- the same values ---


def identity(step: Step) -> Value:
    return step.x


def reshape(step: Step) -> Value:
    step.seen.update({1, "axes", "axis", "shape", "allowzero"})  # the shape is that which onnx infers
    return step.reshape(step.x, step.shape)


def dropout(step: Step) -> Value:
    step.attribute("seed")
    ratio, training = step.number(1, "ratio", 0.5), step.constant(2)
    if step.has(2) and ratio and (training is None or training.any()):
        raise step.refuse("it drops values", "export the model after model.eval()")
    return step.layer("Dropout", step.x, dropout_param={"dropout_ratio": ratio}) if 0 < ratio < 1 else step.x


def cast(step: Step) -> Value:
    """To floats, or to whole numbers with room for the values. A boolean is |x| > 0."""
    step.seen.update({"to", "saturate", "round_mode", 1})  # the type is that which onnx infers
    x, new = step.x, step.outputs[0].type or 0
    old = step.net.types.get(step.node.inputs[0], new)
    if new == 9 and old != 9:
        return step.layer("Threshold", step.layer("AbsVal", x))
    room = old in _BITS and new in _BITS and _BITS[old] <= _BITS[new] and (old in _UNSIGNED or new not in _UNSIGNED)
    if new in _BITS and not room and {old, new} != {6, 7}:
        raise step.refuse("it rounds values to whole numbers, or these to fewer bits", "compute in float32 there")
    return x


# --- another order ---


def transpose(step: Step) -> Value:
    return permuted(step, step.x, list(step.attribute("perm", reversed(range(len(step.x.shape))))))


def permuted(step: Step, x: Value, order: list[int]) -> Value:
    """x with its axes in another order. Successive ones become one, or none."""
    if x.transposed is not None:
        x, before = x.transposed
        order = [before[axis] for axis in order]
    y = _shuffled(step, x, order) or _permuted(step, x, order)
    if y is not x:
        y.transposed = x, order
    return y


def _permuted(step: Step, x: Value, order: list[int]) -> Value:
    shape = tuple(x.shape[axis] for axis in order)
    kept = [axis for axis in order if x.shape[axis] != 1]
    if kept == sorted(kept):
        return step.reshape(x, shape)
    if y := step.layer_if_taken("Permute", x, permute_param={"order": list(order)}):
        return y
    axes = sorted(kept)  # those of y, by their numbers in x
    y = x
    for position, axis in enumerate(kept):
        found = axes.index(axis)
        if found == position:
            continue
        end = found + 1  # a run of axes in their final order moves at once
        while end < len(axes) and axes[end] == kept[position + end - found]:
            end += 1
        blocks = axes[:position], axes[position:found], axes[found:end], axes[end:]
        before, over, moving, behind = (math.prod(x.shape[axis] for axis in block) for block in blocks)
        images = x.shape[0] if axes[0] == 0 and position > 0 else 1
        y = step.reshape(y, (images, before // images, over, moving * behind))
        p = {"kernel_h": 1, "kernel_w": moving, **({"dilation": [1, behind]} if behind > 1 else {})}
        y = step.layer("Im2col", y, convolution_param=p)
        axes = [*blocks[0], *blocks[2], *blocks[1], *blocks[3]]
    return step.reshape(y, shape)


_SHUFFLES: dict[tuple[int, ...], str] = {(0, 1, 4, 2, 5, 3): "Deconvolution", (0, 1, 3, 5, 2, 4): "Convolution"}


def _shuffled(step: Step, x: Value, order: list[int]) -> Value | None:
    """Pixels of blocks from channels, (N, C, rows, columns, H, W) to (N, C, H, rows, W, columns), or to channels.

    The layers have weights of 0 and 1. Any other order gives None.
    """
    kind = _SHUFFLES.get(tuple(order))
    if kind is None:
        return None
    n, channels, a, b, c, d = x.shape
    block, outputs = ((a, b), channels) if kind == "Deconvolution" else ((b, d), channels * b * d)
    count = block[0] * block[1]
    weights = step.zeros(channels * count, 1, *block)
    weights[:] = np.tile(np.eye(count).reshape(-1, 1, *block), (channels, 1, 1, 1))
    images = (n, channels * count, c, d) if kind == "Deconvolution" else (n, channels, a * b, c * d)
    p = {"num_output": outputs, "group": channels, "bias_term": False, **sizes("kernel", block)}
    p.update(sizes("stride", block))
    y = step.layer(kind, step.reshape(x, images), blobs=[weights], fixed=True, convolution_param=p)
    return step.reshape(y, tuple(x.shape[axis] for axis in order))


def depth_to_space(step: Step) -> Value:
    """With the pixels of a block before the channels (mode DCR), or behind them (CRD)."""
    (n, c, h, w), b, first = step.x.shape, step.attribute("blocksize"), step.attribute("mode", "DCR") == "DCR"
    if step.op == "SpaceToDepth":
        x = permuted(step, step.reshape(step.x, (n, c, h // b, b, w // b, b)), [0, 1, 3, 5, 2, 4])
        return step.reshape(permuted(step, x, [0, 2, 3, 1, 4, 5]) if first else x, step.shape)
    x, channels = step.x, c // (b * b)
    if first:
        x = permuted(step, step.reshape(x, (n, b * b, channels, h, w)), [0, 2, 1, 3, 4])
    return step.reshape(permuted(step, step.reshape(x, (n, channels, b, b, h, w)), [0, 1, 4, 2, 5, 3]), step.shape)


# --- a part ---


def cut(step: Step, x: Value, axis: int, points: Sequence[int]) -> list[Value]:
    """The pieces between these points of an axis, which include its ends. A Slice that there is already is used."""
    if len(points) == 2:
        return [x]
    p = pb.SliceParameter(axis=axis, slice_point=points[1:-1])
    if not step.takes("Slice", slice_param=p) or p.SerializeToString() in step.net.unread_pieces:
        return [_picked(step, x, axis, range(*ends)) for ends in pairwise(points)]
    for made in step.net.layers:
        if made.kind == "Slice" and made.bottoms[0] is x and made.param.slice_param == p:
            return made.tops
    return step.layers("Slice", x, tops=len(points) - 1, slice_param=p)


def chosen(step: Step, x: Value, axis: int, indices: Sequence[int]) -> Value:
    """The elements of an axis with these indices, in their order. Negative ones count from the end."""
    n = x.shape[step.axis(axis, x.shape)]
    indices = [index + n * (index < 0) for index in indices]
    if not indices or not all(0 <= index < n for index in indices):
        raise step.error(f"it takes no elements, or some beyond axis {axis} of {x.shape}")
    starts = [0, *(i for i in range(1, len(indices)) if indices[i] != indices[i - 1] + 1), len(indices)]
    runs = [(indices[a], indices[b - 1] + 1) for a, b in pairwise(starts)]
    points = sorted({0, n, *(point for run in runs for point in run)})
    if max(len(points), sum(a <= point < b for a, b in runs for point in points)) > MOST_PIECES:
        return _picked(step, x, axis, indices)
    pieces = dict(zip(points, cut(step, x, axis, points), strict=False))
    return joined(step, [pieces[point] for a, b in runs for point in points if a <= point < b], axis)


def _picked(step: Step, x: Value, axis: int, indices: Sequence[int]) -> Value:
    """As `chosen`, by weights of 0 and 1, where pieces are too many, or are not taken by the target."""
    gaps = {b - a for a, b in pairwise(indices)} or {1}
    if len(x.shape) == 4 and axis >= 2 and len(gaps) == 1 and min(gaps) > 0:
        return windowed(step, x, {axis: range(indices[0], indices[-1] + 1, min(gaps))})
    matrix = step.zeros(len(indices), x.shape[axis])
    matrix[np.arange(len(indices)), indices] = 1
    return weighted(step, x, axis, matrix)


def windowed(step: Step, x: Value, parts: Mapping[int, range]) -> Value:
    """The pixels of images in these ranges of axes, with zeros beyond both ends; by a fixed convolution."""
    kernels, pads, strides = [], [], []
    for axis, n in enumerate(x.shape[2:], 2):
        part = parts.get(axis, range(n))
        pads.append(max(0, -part[0], part[-1] - n + 1))
        strides.append(part.step)
        kernels.append(step.zeros(n + 2 * pads[-1] - part[-1] + part[0]))
        kernels[-1][part[0] + pads[-1]] = 1
    weights = np.tile(np.multiply.outer(*kernels), (x.shape[1], 1, 1, 1))
    p = {"num_output": x.shape[1], "group": x.shape[1], "bias_term": False, **sizes("kernel", weights.shape[2:])}
    p.update(sizes("pad", pads), **sizes("stride", strides))
    return step.layer("Convolution", x, blobs=[weights], fixed=True, convolution_param=p)


def weighted(step: Step, x: Value, axis: int, matrix: np.ndarray) -> Value:
    """Sums of the values along an axis with the weights (new, old), by a convolution or an inner product."""
    new, n = matrix.shape
    if axis == len(x.shape) - 1 and axis != 1:
        p = {"num_output": new, "bias_term": False, "axis": axis}
        return step.layer("InnerProduct", x, blobs=[matrix], fixed=True, inner_product_param=p)
    before, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    y = x if len(x.shape) == 4 and axis == 1 else step.reshape(x, (before, n, 1, behind))
    p = {"num_output": new, "kernel_size": [1], "bias_term": False}
    y = step.layer("Convolution", y, blobs=[matrix[..., None, None]], fixed=True, convolution_param=p)
    return step.reshape(y, (*x.shape[:axis], new, *x.shape[axis + 1 :]))


def part(step: Step) -> Value:
    """A stride over pixels is a Pooling of single values."""
    x, strides = step.x, [1, 1]
    starts, ends = step.list_of(1, "starts") or [], step.list_of(2, "ends") or []
    axes, gaps = step.list_of(3, "axes") or range(len(starts)), step.list_of(4) or [1] * len(starts)
    for given, *bounds in zip(axes, starts, ends, gaps, strict=True):
        axis = step.axis(given, x.shape)
        taken = range(x.shape[axis])[slice(*bounds)]
        if len(x.shape) == 4 and axis >= 2 and taken.step > 1 and taken:
            strides[axis - 2] = taken.step
            taken = range(taken[0], taken[-1] + 1)
        x = chosen(step, x, axis, taken)
    if strides == [1, 1]:
        return x
    p = {"kernel_size": 1, "stride_h": strides[0], "stride_w": strides[1]}  # the last pixel is one of them
    return step.layer("Pooling", x, pooling_param=p)


def split(step: Step) -> list[Value | np.ndarray]:
    axis, count = step.axis(step.attribute("axis"), step.x.shape), len(step.node.outputs)
    step.attribute("num_outputs")
    n = step.x.shape[axis]
    whole = -(-n // count)
    lengths = step.list_of(1, "split") or [min(whole, n - whole * index) for index in range(count)]
    if len(lengths) != count or sum(lengths) != n or min(lengths) < 0:
        raise step.error(f"it cannot split axis {axis} of {step.x.shape} into {lengths}")
    pieces = iter(cut(step, step.x, axis, [0, *np.cumsum([one for one in lengths if one]).tolist()]))
    shapes = [(*step.x.shape[:axis], length, *step.x.shape[axis + 1 :]) for length in lengths]
    return [next(pieces) if shape[axis] else np.zeros(shape, np.float32) for shape in shapes]


def gather(step: Step) -> Value:
    table = step.constant(0)
    if table is not None and table.ndim == 2 and step.attribute("axis") == 0:
        p = {"input_dim": table.shape[0], "num_output": table.shape[1], "bias_term": False}
        return step.layer("Embed", step.value(1), blobs=[step.weights(0, "rows")], embed_param=p)
    axis = step.axis(step.attribute("axis"), step.x.shape)
    return step.reshape(chosen(step, step.x, axis, _indices(step).reshape(-1).tolist()), step.shape)


def _indices(step: Step) -> np.ndarray:
    indices = step.constant(1)
    if indices is None:
        raise step.refuse("it chooses values by indices that depend on the input", "end the model before it by --cut")
    return indices


def gather_grid(step: Step) -> Value:
    """Indices of a grid, such as those of adaptive pooling: rows that vary over the first axes, columns over others.

    Other indices are those of the flattened axes.
    """
    x, indices = step.x, _indices(step)
    axes, single = indices.shape[-1], step.attribute("batch_dims", 0) == 0
    for split in range(indices.ndim if axes == 2 and single else 0):
        grid = indices.reshape(math.prod(indices.shape[:split]), -1, 2)
        rows, columns = grid[:, 0, 0], grid[0, :, 1]
        if np.array_equal(grid, np.stack(np.meshgrid(rows, columns, indexing="ij"), -1)):
            y = chosen(step, chosen(step, x, 0, rows.tolist()), 1, columns.tolist())
            return step.reshape(y, step.shape)
    if not single:
        raise step.refuse("it has other indices for each image", "choose the same ones of all images")
    flat = step.reshape(x, (math.prod(x.shape[:axes]), *x.shape[axes:]))
    rows = np.ravel_multi_index(tuple(np.moveaxis(indices % x.shape[:axes], -1, 0)), x.shape[:axes])
    return step.reshape(chosen(step, flat, 0, rows.reshape(-1).tolist()), step.shape)


# --- more values ---


def joined(step: Step, parts: Sequence[Value], axis: int) -> Value:
    return parts[0] if len(parts) == 1 else step.layer("Concat", *parts, concat_param={"axis": axis})


def concat(step: Step) -> Value:
    parts = [step.value(index) for index in range(len(step.node.inputs))]
    return joined(step, parts, step.axis(step.attribute("axis", 1), parts[0].shape))


def pad(step: Step) -> Value:
    x, mode, pads = step.x, step.attribute("mode"), step.list_of(1, "pads") or []
    axes = [step.axis(axis, x.shape) for axis in step.list_of(3) or range(len(x.shape))]
    begins, ends = [0] * len(x.shape), [0] * len(x.shape)
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        x = chosen(step, x, axis, range(max(0, -begin), x.shape[axis] + min(0, end)))
        begins[axis], ends[axis] = max(0, begin), max(0, end)
    if mode == "constant":
        value = step.number(2, "value", 0.0)
        y = padded(step, x, begins, ends, value)
        if y is not x and not value and not any((*begins[:2], *ends[:2])):
            y.unpadded = x, begins[2:], ends[2:]
        return y
    step.seen.update({2, "value"})  # which other modes do not use
    if mode not in ("reflect", "edge", "wrap") or max(*begins, *ends) > MOST_PIECES:
        raise step.refuse(f"it pads by {begins} and {ends} in the mode {mode}", "pad less, and with constants")
    for axis, both in enumerate(zip(begins, ends, strict=True)):
        x = chosen(step, x, axis, np.pad(np.arange(x.shape[axis]), both, mode).tolist())
    return x


def padded(step: Step, x: Value, begins: Sequence[int], ends: Sequence[int], value: float) -> Value:
    """x with a constant around it."""
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if value == 0 and len(x.shape) == 4 and axis >= 2 and max(begin, end) > 0 and not step.takes("DummyData"):
            x = windowed(step, x, {axis: range(-begin, x.shape[axis] + end)})
            continue
        before, behind = (
            [step.filled((*x.shape[:axis], more, *x.shape[axis + 1 :]), value)] if more > 0 else []
            for more in (begin, end)
        )
        x = joined(step, [*before, x, *behind], axis)
    return x


def expand(step: Step) -> Value:
    step.seen.update({1, 2})  # the shape is that which onnx infers
    return tiled(step, step.x, step.shape)


def tiled(step: Step, x: Value, shape: Shape) -> Value:
    """x, repeated along its axes to this shape."""
    x = step.reshape(x, ((1,) * (len(shape) - len(x.shape)) + x.shape))
    for axis, new in enumerate(shape):
        times = new // max(1, x.shape[axis])
        if times > 1 and not step.takes("Tile") and times <= MOST_PIECES:
            x = joined(step, [x] * times, axis)
        elif times != 1:
            x = step.layer("Tile", x, tile_param={"axis": axis, "tiles": times})
    return x
