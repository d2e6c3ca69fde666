"""pycaffe's `caffe.draw`: pictures of nets, by Graphviz where it is installed and by fcaffe's own drawing elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from fcaffe.errors import ArgumentError, FcaffeError
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2
from fcaffe.pycaffe import graph_picture
from fcaffe.pycaffe.graph_picture import Edge, Node

LAYER_STYLE_DEFAULT = {"shape": "record", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "record", "fillcolor": "#90EE90", "style": "filled"}
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}

_COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_LEARNING = ("Convolution", "Deconvolution", "InnerProduct")
_TEXT_FORMATS = ("raw", "dot", "gv")  # the graph in Graphviz's language


class Graph:
    """A net's graph with what pydot's has for making files of it: `create`, `create_png`, `write`, `write_png`, ..."""

    def __init__(self, name: str, rankdir: str) -> None:
        self.name = name
        self.rankdir = rankdir
        self.nodes: dict[str, tuple[str, dict[str, str]]] = {}  # label and attributes
        self.edges: list[tuple[str, str, str]] = []  # source, target, label

    def to_string(self) -> str:
        """The graph in Graphviz's language."""
        lines = [f"digraph {_quoted(self.name)} {{", f"rankdir={_quoted(self.rankdir)};"]
        for name, (label, style) in self.nodes.items():
            if style.get("shape") == "record":
                label = re.sub(r"[{}|<>]", r"\\\g<0>", label)
            attributes = {"label": label, **style}
            lines.append(f"{_quoted(name)} [{', '.join(f'{key}={_quoted(v)}' for key, v in attributes.items())}];")
        for source, target, label in self.edges:
            lines.append(f"{_quoted(source)} -> {_quoted(target)} [label={_quoted(label)}];")
        return "\n".join([*lines, "}", ""])

    def create(self, prog: str | None = None, format: str = "ps") -> bytes:
        """The picture in a format of Graphviz's program `prog` (dot); without that program svg, png, pdf or raw."""
        text = self.to_string()
        if format == "raw":
            return text.encode()
        if program := shutil.which(prog or "dot"):
            done = subprocess.run([program, f"-T{format}"], input=text.encode(), capture_output=True)
            if done.returncode:
                problem = " ".join(done.stderr.decode(errors="replace").split())
                raise FcaffeError(f"Graphviz's {program} cannot draw the net as {format}: {problem}")
            return done.stdout
        if format in _TEXT_FORMATS:
            return text.encode()
        nodes, edges = nodes_and_edges(self)
        if format == "svg":
            return graph_picture.svg(nodes, edges, self.rankdir, self.name)
        if format in ("png", "pdf"):
            return graph_picture.by_matplotlib(nodes, edges, self.rankdir, format)
        raise FcaffeError(
            f'drawing a net in the format "{format}" needs Graphviz (its program dot); without it a file can be .svg, '
            ".png, .pdf or .raw"
        )

    def write(self, path: str | os.PathLike[str], prog: str | None = None, format: str = "raw") -> bool:
        """Write the picture, whole or not at all."""
        picture = self.create(prog, format)
        with replacing(path, "picture") as temporary:
            temporary.write_bytes(picture)
        return True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """`create_FORMAT` and `write_FORMAT`."""
        action, _, format = name.partition("_")
        if action not in ("create", "write") or not format.isalnum():
            raise AttributeError(name)

        def act(*args: Any, **kwargs: Any) -> Any:
            return getattr(self, action)(*args, format=format, **kwargs)

        return act


def nodes_and_edges(graph: Graph) -> tuple[dict[str, Node], list[Edge]]:
    """What fcaffe's own drawing takes of a graph; of two layers of one name and type, an edge has both labels."""
    nodes = {
        name: Node(label.split(r"\n"), style.get("shape", "ellipse"), style.get("fillcolor", "white"))
        for name, (label, style) in graph.nodes.items()
    }
    labels: dict[tuple[str, str], dict[str, None]] = {}
    for source, target, label in graph.edges:
        labels.setdefault((source, target), {})[label] = None
    return nodes, [Edge(*ends, ", ".join(of)) for ends, of in labels.items()]


def get_pooling_types_dict() -> dict[int, str]:
    """The names of the methods of pooling by number."""
    return {number: name for name, number in caffe_pb2.PoolingParameter.PoolMethod.items()}


def get_edge_label(layer: Any) -> str:
    """What stands at the lines to a layer's tops: the batch size of Data, or the number of outputs; else `""`."""
    if layer.type == "Data":
        return f"Batch {layer.data_param.batch_size}"
    if layer.type in ("Convolution", "Deconvolution"):
        return str(layer.convolution_param.num_output)
    if layer.type == "InnerProduct":
        return str(layer.inner_product_param.num_output)
    return '""'


def get_layer_lr_mult(layer: Any) -> tuple[float, float]:
    """The lr_mult of weights and bias of a Convolution, Deconvolution or InnerProduct. ArgumentError for others."""
    if layer.type not in _LEARNING:
        raise ArgumentError(f"{layer.type} layers do not have a learning rate multiplier")
    rates = [param.lr_mult for param in layer.param]
    if len(rates) > 2:
        raise ArgumentError(
            f'Could not parse the learning rate multiplier: the layer "{layer.name}" has {len(rates)} param'
        )
    weights, bias = [*rates, 1.0, 1.0][:2]
    return weights, bias


def get_layer_label(layer: Any, rankdir: str, display_lrm: bool = False) -> str:
    r"""What stands in a layer's box, in quotation marks: name, type and, where it has them, kernel, stride and padding.

    With `display_lrm` also the lr_mult. Words are separated by blanks if the net runs up or down, else by `\n`, the
    two characters.
    """
    separator = " " if rankdir in ("TB", "BT") else r"\n"
    words = [layer.name, f"({layer.type})"]
    if layer.type == "Pooling":
        pooling = layer.pooling_param
        words[1] = f"(Pooling {get_pooling_types_dict()[pooling.pool]})"
        kernel, stride, pad = pooling.kernel_size, pooling.stride, pooling.pad
    elif layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        kernel, stride, pad = (
            [*given, default][0] for given, default in ((param.kernel_size, 1), (param.stride, 1), (param.pad, 0))
        )
    if layer.type in ("Convolution", "Deconvolution", "Pooling"):
        words += [f"kernel size: {kernel}", f"stride: {stride}", f"pad: {pad}"]
    if display_lrm and layer.type in _LEARNING and any(rates := get_layer_lr_mult(layer)):
        words.append(f"lr mult: {rates[0]:.1f}, {rates[1]:.1f}")
    return f'"{separator.join(words)}"'


def choose_color_by_layertype(layertype: str) -> str:
    """The colour of a layer's box."""
    return _COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def get_pydot_graph(
    caffe_net: Any, rankdir: str, label_edges: bool = True, phase: int | None = None, display_lrm: bool = False
) -> Graph:
    """The graph of a NetParameter's layers and blobs, of all layers or of those of a phase.

    It is a `Graph`, which makes pictures as pydot's do; pydot itself is not needed.
    """
    graph = Graph(caffe_net.name or "Net", rankdir)
    for layer in caffe_net.layer:
        if phase is not None and not _is_in(layer, phase):
            continue
        name = f"{layer.name}_{layer.type}"
        if len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top):
            style = NEURON_LAYER_STYLE
        else:
            style = {**LAYER_STYLE_DEFAULT, "fillcolor": choose_color_by_layertype(layer.type)}
        graph.nodes[name] = (get_layer_label(layer, rankdir, display_lrm).strip('"'), style)
        for bottom in layer.bottom:
            graph.nodes[f"{bottom}_blob"] = (bottom, BLOB_STYLE)
            graph.edges.append((f"{bottom}_blob", name, ""))
        for top in layer.top:
            graph.nodes[f"{top}_blob"] = (top, {})
            label = get_edge_label(layer).strip('"') if label_edges else ""
            graph.edges.append((name, f"{top}_blob", label))
    return graph


def draw_net(
    caffe_net: Any, rankdir: str, ext: str = "png", phase: int | None = None, display_lrm: bool = False
) -> bytes:
    """The picture of a NetParameter, as the content of a file with the extension `ext`."""
    return get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm).create(format=ext)


def draw_net_to_file(
    caffe_net: Any, filename: str, rankdir: str = "LR", phase: int | None = None, display_lrm: bool = False
) -> None:
    """Write the picture of a NetParameter, in the format that the file's name ends in; .raw is Graphviz's language."""
    graph = get_pydot_graph(caffe_net, rankdir, phase=phase, display_lrm=display_lrm)
    graph.write(filename, format=filename.rpartition(".")[2])


def _is_in(layer: Any, phase: int) -> bool:
    """Whether a layer is drawn in a phase, by the phases of its rules alone."""
    if layer.include and layer.exclude:
        raise ArgumentError(f"layer {layer.name} has both include and exclude specified.")
    if layer.include:
        return any(rule.phase == phase for rule in layer.include)
    return all(rule.phase != phase for rule in layer.exclude)


def _quoted(text: str) -> str:
    r"""A string of Graphviz's language; `\n` stays what it is there."""
    return '"' + text.replace('"', r"\"") + '"'
