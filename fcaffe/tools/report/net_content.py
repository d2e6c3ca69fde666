"""The part of a page about the net: its layers, its drawing, the filters of its first convolution; and prototxts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fcaffe.errors import FcaffeError
from fcaffe.layers.convolution import Convolution
from fcaffe.net import Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_solver
from fcaffe.pycaffe.draw import draw_net
from fcaffe.tools.summary import LayerSummary, layer_summaries

FILTERS = 96  # at most, in the page
DRAWN = 1000  # layers of the largest net that is drawn; Graphviz takes seconds for it
LEAST_SCALE = 0.65  # of a drawing; a larger one has scroll bars


@dataclass
class NetContent:
    """A net in a page: "test" or "training", its layers, an SVG element, and the filters (N, C, H, W) of a layer."""

    kind: str = ""
    layers: list[LayerSummary] = field(default_factory=list)
    drawing: str = ""
    filters_of: str = ""
    filters: np.ndarray | None = None


def net_content(net: Net, param: Any) -> NetContent:
    """The content for a net that was built from these parameters. It has no filters yet."""
    kind = "test" if param.state.phase == pb.TEST else "training"
    if len(param.layer) > DRAWN:
        return NetContent(kind, layer_summaries(net))
    try:
        svg = draw_net(param, "TB", "svg", phase=param.state.phase).decode()
        size = re.compile(r'<svg width="(\d+)pt" height="(\d+)pt"')
        scaled = f"min-width: calc({LEAST_SCALE} * \\1px)"
        drawing = size.sub(rf'<svg width="\1" height="\2" style="{scaled}"', svg[svg.index("<svg") :], count=1)
    except FcaffeError as problem:
        drawing = f"<p>{escape(str(problem))}</p>"
    return NetContent(kind, layer_summaries(net), drawing)


def first_filters(net: Net) -> tuple[str, np.ndarray | None]:
    """The name of the first convolution in two dimensions and its filters (N, C, H, W), or None if there is none."""
    for node in net.nodes:
        if isinstance(node.layer, Convolution) and len(node.layer.blobs[0].shape) == 4:
            return node.name, net.context.engine.to_numpy(node.layer.blobs[0].data)[:FILTERS]
    return "", None


def prototxts(solver_file: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Names and texts of the solver's file and of those of its nets. A file that is not there is omitted."""
    param = read_solver(solver_file)
    paths = [os.fspath(solver_file), param.net, param.train_net, *param.test_net]
    return [(path, Path(path).read_text(errors="replace")) for path in dict.fromkeys(paths) if os.path.isfile(path)]
