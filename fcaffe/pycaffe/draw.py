"""pycaffe's `caffe.draw`: pictures of nets, drawn by Graphviz.

Graphviz is either the program `dot` of the system or the copy in the package pygraphviz (`fcaffe[plot]`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from fcaffe.errors import ArgumentError, FcaffeError
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2
from fcaffe.python_path import python

LAYER_STYLE_DEFAULT = {"shape": "box", "fillcolor": "#6495ED", "style": "filled"}
NEURON_LAYER_STYLE = {"shape": "box", "fillcolor": "#90EE90", "style": "filled"}
BLOB_STYLE = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}

_COLORS = {"Convolution": "#FF5050", "Deconvolution": "#FF5050", "Pooling": "#FF9900", "InnerProduct": "#CC33FF"}
_LEARNING = ("Convolution", "Deconvolution", "InnerProduct")
_DIRECTIONS = ("TB", "BT", "LR", "RL")
_MANY = 600  # nodes; in a larger graph the layout does not make room for labels of edges
_SETTINGS = """ranksep=0.3;
node [fontname="Helvetica,Arial,sans-serif"];
edge [fontname="Helvetica,Arial,sans-serif", fontsize=12];"""

# Runs in a process of its own, which keeps warnings of the C libraries out of the log.
_PYGRAPHVIZ = """
import sys, pygraphviz
try:
    graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
    sys.stdout.buffer.write(graph.draw(prog=sys.argv[1], format=sys.argv[2]))
except (TypeError, ValueError) as problem:
    sys.exit(str(problem))
"""


class Graph:
    """A net's graph with pydot's methods for pictures: `create`, `create_png`, `write`, `write_png`, ..."""

    def __init__(self, name: str, rankdir: str) -> None:
        if rankdir not in _DIRECTIONS:
            raise ArgumentError(f'rankdir "{rankdir}" is none of {", ".join(_DIRECTIONS)}')
        self.name = name
        self.rankdir = rankdir
        self.nodes: dict[str, tuple[Sequence[str], dict[str, str]]] = {}  # words of the label, attributes
        self.edges: dict[tuple[str, str], list[str]] = {}  # (source, target) -> labels

    def add_edge(self, source: str, target: str, label: str = "") -> None:
        """Add an edge, or a label to the edge that is already there."""
        labels = self.edges.setdefault((source, target), [])
        if label and label not in labels:
            labels.append(label)

    def to_string(self) -> str:
        """The graph in Graphviz's language."""
        lines = [f"digraph {_quoted(self.name)} {{", f'rankdir="{self.rankdir}";', _SETTINGS]
        separator = " " if self.rankdir in ("TB", "BT") else r"\n"
        for name, (words, style) in self.nodes.items():
            label = separator.join(map(_label, words))
            attributes = [f'{key}="{value}"' for key, value in {"label": label, **style}.items()]
            lines.append(f"{_quoted(name)} [{', '.join(attributes)}];")
        attribute = "label" if len(self.nodes) <= _MANY else "xlabel"  # labels in the layout make dot 5 times slower
        for (source, target), labels in self.edges.items():
            label = r"\n".join(map(_label, labels))
            lines.append(f"{_quoted(source)} -> {_quoted(target)}" + (f' [{attribute}="{label}"];' if label else ";"))
        return "\n".join([*lines, "}", ""])

    def create(self, prog: str | None = None, format: str = "ps") -> bytes:
        """The picture in a format of Graphviz's layout program `prog` (dot); raw is the graph in Graphviz's language.

        Raises FcaffeError without Graphviz, and if it cannot draw the format.
        """
        text = self.to_string().encode()
        if format == "raw":
            return text
        done = subprocess.run(_graphviz(prog or "dot", format), input=text, capture_output=True)
        if done.returncode:
            problem = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise FcaffeError(f"Graphviz cannot draw the net as {format}: {problem}")
        return done.stdout

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


def get_pooling_types_dict() -> dict[int, str]:
    return {number: name for name, number in caffe_pb2.PoolingParameter.PoolMethod.items()}


def get_edge_label(layer: Any) -> str:
    """The label of the edges to a layer's tops: the batch size of Data, or the number of outputs; else `""`."""
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
    r"""The label of a layer's box in quotation marks: name, type and, for layers with windows, kernel, stride and pad.

    `display_lrm` adds the lr_mult. The separator is a space if the net runs up or down, else the two characters `\n`.
    """
    separator = " " if rankdir in ("TB", "BT") else r"\n"
    return f'"{separator.join(_layer_words(layer, display_lrm))}"'


def _layer_words(layer: Any, display_lrm: bool) -> list[str]:
    words = [layer.name, f"({layer.type})"]
    if layer.type == "Pooling":
        pooling = layer.pooling_param
        words[1] = f"(Pooling {get_pooling_types_dict()[pooling.pool]})"
        own = ("kernel_size", "stride", "pad")
        kernel, stride, pad = (list(getattr(pooling, f"{field}_3d")) or getattr(pooling, field) for field in own)
    elif layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        kernel, stride, pad = (
            [*given, default][0] for given, default in ((param.kernel_size, 1), (param.stride, 1), (param.pad, 0))
        )
    if layer.type in ("Convolution", "Deconvolution", "Pooling"):
        words += [f"kernel size: {kernel}", f"stride: {stride}", f"pad: {pad}"]
    if display_lrm and layer.type in _LEARNING and any(rates := get_layer_lr_mult(layer)):
        words.append(f"lr mult: {rates[0]:.1f}, {rates[1]:.1f}")
    return words


def choose_color_by_layertype(layertype: str) -> str:
    return _COLORS.get(layertype, LAYER_STYLE_DEFAULT["fillcolor"])


def get_pydot_graph(
    caffe_net: Any, rankdir: str, label_edges: bool = True, phase: int | None = None, display_lrm: bool = False
) -> Graph:
    """The graph of a NetParameter's layers and blobs, of all layers or of those of a phase.

    The result is a `Graph`, whose methods for pictures are pydot's; pydot itself is not needed.
    """
    graph = Graph(caffe_net.name or "Net", rankdir)
    for layer in caffe_net.layer:
        if phase is not None and not _is_in(layer, phase):
            continue
        name = f"{layer.name}_{layer.type}"
        in_place = len(layer.bottom) == 1 and list(layer.bottom) == list(layer.top)
        color = choose_color_by_layertype(layer.type)
        style = NEURON_LAYER_STYLE if in_place else {**LAYER_STYLE_DEFAULT, "fillcolor": color}
        graph.nodes[name] = (_layer_words(layer, display_lrm), style)
        for bottom in layer.bottom:
            graph.nodes[f"{bottom}_blob"] = ([bottom], BLOB_STYLE)
            graph.add_edge(f"{bottom}_blob", name)
        for top in layer.top:
            graph.nodes[f"{top}_blob"] = ([top], {})
            graph.add_edge(name, f"{top}_blob", get_edge_label(layer).strip('"') if label_edges else "")
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


def _graphviz(prog: str, format: str) -> list[str]:
    """The command that reads a graph from stdin and writes its picture to stdout. FcaffeError if there is none."""
    if program := shutil.which(prog):
        return [program, f"-T{format}"]
    if importlib.util.find_spec("pygraphviz"):
        return python("-c", _PYGRAPHVIZ, prog, format)
    raise FcaffeError(
        f"drawing a net as {format} needs Graphviz (its program {prog}): pip install matplotlib pygraphviz; "
        "without it a file can be .raw, which is Graphviz's language"
    )


def _quoted(text: str) -> str:
    """The name of a node or graph as a string of Graphviz's language."""
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _label(text: str) -> str:
    """Text as part of a label, in which Graphviz replaces escapes and entities."""
    return text.replace("\\", r"\\").replace("&", "&amp;").replace('"', r"\"")
