"""Table of the layers in a prototxt, in the format of Caffe's summarize.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Terminal codes: for blobs in the order of their first use, cyclically; for a bottom that is no layer's top; for a top
# that is no layer's bottom.
_COLORS = ["92", "93", "94", "95", "97", "96", "42", "43;30", "100", "44", "103;30", "107;30"]
_UNKNOWN = "41"
_UNREAD = "\033[1;4m"
_CODE = re.compile(r"\033\[[\d;]+m")

Row = Sequence[str]


def net_rows(net: Any, colors: bool) -> list[Row]:
    """For each layer: name, type, parameters and their multipliers, bottoms, an arrow, tops, and its window."""
    unread: set[str] = set()
    for layer in net.layer:
        unread = (unread | set(layer.top)) - set(layer.bottom)
    color_of: dict[str, str] = {}
    rows: list[Row] = []
    for layer in net.layer:
        tops = []
        for index, top in enumerate(layer.top):
            color = color_of.setdefault(top, _COLORS[len(color_of) % len(_COLORS)])
            text = _UNREAD + top if colors and top in unread else top
            if index < len(layer.loss_weight):
                text = f"{layer.loss_weight[index]} * {text}"
            tops.append(_colored(text, color, colors))
        bottoms = [_colored(bottom, color_of.get(bottom, _UNKNOWN), colors) for bottom in layer.bottom]
        rows.append((layer.name, _type(layer), _params(layer), ", ".join(bottoms), "->", ", ".join(tops), _size(layer)))
    return rows


def table_lines(rows: list[Row], max_width: int) -> list[str]:
    """The rows in aligned columns of at most `max_width` characters.

    A longer cell moves the rest of its own line to the right.
    """
    widths = [min(max(_length(cell) + 1 for cell in column), max_width) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        line, end = "", 0
        for cell, width in zip(row, widths, strict=True):
            end += width
            line += cell + " "
            line += " " * (end - _length(line))
        lines.append(line.rstrip())
    return lines


def _colored(text: str, color: str, colors: bool) -> str:
    return f"\033[{color}m{text}\033[0m" if colors else text


def _length(text: str) -> int:
    """The number of visible characters."""
    return len(_CODE.sub("", text))


def _type(layer: Any) -> str:
    return f"{layer.python_param.module}.{layer.python_param.layer}" if layer.type == "Python" else layer.type


def _params(layer: Any) -> str:
    """The names of the parameters, and their multipliers of rate and decay that are not 1."""
    texts = []
    for param in layer.param:
        rate = [f"x{param.lr_mult}"] if param.lr_mult != 1 else []
        decay = [f"Dx{param.decay_mult}"] if param.decay_mult != 1 else []
        texts.append(" ".join([param.name, *rate, *decay] if param.name else [*rate, *decay]))
    return f"({', '.join(texts)})" if any(texts) else ""


def _size(layer: Any) -> str:
    """`kernel/stride+pad outputs/groups`, without strides and groups of 1 and pads of 0."""
    if layer.type in ("Convolution", "Deconvolution") and len(layer.convolution_param.kernel_size) == 1:
        param = layer.convolution_param
        stride, pad = (next(iter(values), default) for values, default in ((param.stride, 1), (param.pad, 0)))
        group = f"/{param.group}" if param.group != 1 else ""
        return f"{_window(param.kernel_size[0], stride, pad)} {param.num_output}{group}"
    if layer.type == "Pooling":
        return _window(layer.pooling_param.kernel_size, layer.pooling_param.stride, layer.pooling_param.pad)
    return ""


def _window(kernel: int, stride: int, pad: int) -> str:
    return str(kernel) + (f"/{stride}" if stride != 1 else "") + (f"+{pad}" if pad else "")
