"""The windows of convolutions and poolings: sizes and padding."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.tools.onnx.reading.graph import Step


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


def padding(step: Step, kernel: Sequence[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """The padding at the beginning and at the end of each axis for windows with this kernel."""
    auto, size, count = step.attribute("auto_pad", "NOTSET"), step.x.shape[2:], len(step.x.shape) - 2
    pads = list(step.attribute("pads", [0] * 2 * count)) if auto == "NOTSET" else [0] * 2 * count
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(size, kernel, strides, strict=True)]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = less + more if auto == "SAME_UPPER" else more + less
    if len(pads) != 2 * count:
        raise step.error(f"it has {len(pads)} pads for {count} spatial axes")
    return pads[:count], pads[count:]
