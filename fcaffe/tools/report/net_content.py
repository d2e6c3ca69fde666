"""What a page shows of a net: its layers, the filters of its first convolution, its prototxts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fcaffe.errors import FcaffeError
from fcaffe.layers.convolution import Convolution
from fcaffe.net import Net
from fcaffe.proto import read_solver
from fcaffe.pycaffe.draw import draw_net
from fcaffe.tools.report.page import LayerRow
from fcaffe.tools.summary import multiply_adds

FILTERS = 96  # that are shown at most


def layer_rows(net: Net, seconds: Sequence[float] | None = None) -> list[LayerRow]:
    """The layers but for the splits that the net puts in by itself; `seconds` of each layer's forward pass."""
    rows = []
    for index, node in enumerate(net.nodes):
        if node.layer.type == "Split":
            continue
        shapes = [blob.shape for blob in node.tops]
        parameters = sum(blob.count for blob in node.layer.blobs)
        spent = None if seconds is None else seconds[index]
        rows.append(LayerRow(node.name, node.layer.type, shapes, parameters, multiply_adds(node), spent))
    return rows


def first_filters(net: Net) -> tuple[str, np.ndarray | None]:
    """The name of the first convolution in two dimensions and its filters (N, C, H, W), or None if there is none."""
    for node in net.nodes:
        if isinstance(node.layer, Convolution) and len(node.layer.blobs[0].shape) == 4:
            return node.name, net.context.engine.to_numpy(node.layer.blobs[0].data)[:FILTERS]
    return "", None


def drawing(param: Any) -> str:
    """The net of a NetParameter, in the phase of its state, as an SVG element; without Graphviz the reason."""
    try:
        svg = draw_net(param, "TB", "svg", phase=param.state.phase).decode()
    except FcaffeError as problem:
        return f"<p>{escape(str(problem))}</p>"
    return svg[svg.index("<svg") :]


def prototxts(solver_file: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """The solver's file and those of its nets, by name; what cannot be read is left out."""
    param = read_solver(solver_file)
    paths = [os.fspath(solver_file), param.net, param.train_net, *param.test_net]
    return [(path, Path(path).read_text(errors="replace")) for path in dict.fromkeys(paths) if os.path.isfile(path)]
