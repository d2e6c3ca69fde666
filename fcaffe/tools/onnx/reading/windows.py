"""The windows of convolutions and poolings: sizes, padding, and blocks of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fcaffe.tools.onnx.reading.graph import Shape, Step, Value

Ends = tuple[list[int], list[int]]  # numbers of values at the beginning and at the end of each axis


def sizes(field: str, values: Sequence[int]) -> dict[str, object]:
    """One number for each spatial axis, as the fields of convolution_param and pooling_param have them.

    `field` is kernel, stride or pad. The defaults are left out.
    """
    if all(value == (0 if field == "pad" else 1) for value in values) and field != "kernel":
        return {}
    one = "kernel_size" if field == "kernel" else field
    if len(set(values)) == 1:
        return {one: values[0]}
    return {f"{field}_h": values[0], f"{field}_w": values[1]} if len(values) == 2 else {one: list(values)}


def each(step: Step, name: str, count: int) -> list[int]:
    """A positive number for each spatial axis, which is 1 by default."""
    values = list(step.attribute(name, [1] * count))
    if len(values) != count or min(values) < 1:
        raise step.error(f"its {name} are {values}, and it needs {count} positive numbers")
    return values


def spread(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    return [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]


def padding(step: Step, size: Shape, kernel: Sequence[int], strides: list[int]) -> Ends:
    """The padding of images of this size for windows with this kernel."""
    auto, count = step.attribute("auto_pad", "NOTSET"), len(size)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(size, kernel, strides, strict=True)]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        return (less, more) if auto == "SAME_UPPER" else (more, less)
    pads = list(step.attribute("pads", [0] * 2 * count)) if auto == "NOTSET" else [0] * 2 * count
    if len(pads) != 2 * count:
        raise step.error(f"it has {len(pads)} pads for {count} spatial axes")
    return pads[:count], pads[count:]


def pads_of(step: Step) -> Ends:
    """The numbers of values that a Pad adds."""
    pads, count = step.list_of(1, "pads") or [], len(step.x.shape)
    axes = [step.axis(axis, step.x.shape) for axis in step.list_of(3) or range(count)]
    begins, ends = [0] * count, [0] * count
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        begins[axis], ends[axis] = begin, end
    return begins, ends


def pad_value(step: Step) -> float:
    return float(step.weights(2, "values").reshape(-1)[0]) if step.has(2) else float(step.attribute("value", 0.0))


def zeros_before(step: Step) -> tuple[Value, Ends]:
    """The bottom of a Pad in front of the node that adds zeros to images, and their numbers; else the first input."""
    x, before = step.x, step.node_before(0)
    nothing = [0] * (len(x.shape) - 2), [0] * (len(x.shape) - 2)
    if before is None or before.op != "Pad":
        return x, nothing
    pad = step.reading(before)
    if not isinstance(pad.known(0), Value) or pad.attribute("mode", "constant") != "constant" or pad_value(pad):
        return x, nothing
    begins, ends = pads_of(pad)
    if any((*begins[:2], *ends[:2])) or min(*begins, *ends) < 0:
        return x, nothing
    return pad.x, (begins[2:], ends[2:])


# --- blocks of pixels that become channels, and back, by weights of 0 and 1 ---


def _picks(step: Step, channels: int, block: tuple[int, int]) -> tuple[np.ndarray, dict[str, object]]:
    """A kernel for each pixel of a block that picks it, for each channel, and the fields of windows without overlap."""
    count = block[0] * block[1]
    weights = step.zeros(channels * count, 1, *block)
    weights[:] = np.tile(np.eye(count).reshape(-1, 1, *block), (channels, 1, 1, 1))
    return weights, {"group": channels, "bias_term": False, **sizes("kernel", block), **sizes("stride", block)}


def pixels_to_channels(step: Step, x: Value, block: tuple[int, int]) -> Value:
    """(N, C, H, W) as (N, C * rows * columns, H / rows, W / columns) for blocks of rows x columns."""
    if x.shape[2] % block[0] or x.shape[3] % block[1]:
        raise step.error(f"its input of shape {x.shape} has no blocks of {block}")
    weights, p = _picks(step, x.shape[1], block)
    p["num_output"] = len(weights)
    return step.layer("Convolution", x, blobs=[weights], fixed=True, convolution_param=p)


def shuffled_pixels(step: Step, x: Value, order: Sequence[int]) -> Value | None:
    """A transposition of six axes that moves pixels of blocks to channels or back, as in PixelShuffle.

    None if it is something else.
    """
    if len(x.shape) != 6:
        return None
    n, channels, a, b, c, d = x.shape
    if list(order) == [0, 1, 4, 2, 5, 3]:  # (N, C, rows, columns, H, W) to (N, C, H, rows, W, columns)
        weights, p = _picks(step, channels, (a, b))
        p["num_output"] = channels
        images = step.reshape(x, (n, channels * a * b, c, d))
        y = step.layer("Deconvolution", images, blobs=[weights], fixed=True, convolution_param=p)
        return step.reshape(y, (n, channels, c, a, d, b))
    if list(order) == [0, 1, 3, 5, 2, 4]:  # (N, C, H, rows, W, columns) to (N, C, rows, columns, H, W)
        images = step.reshape(x, (n, channels, a * b, c * d))
        return step.reshape(pixels_to_channels(step, images, (b, d)), (n, channels, b, d, a, c))
    return None
