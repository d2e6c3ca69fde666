"""An ONNX file as a Caffe net with its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import FcaffeError, NetError, SnapshotError
from fcaffe.model_files import Model, StoredLayer
from fcaffe.onnx.library import onnx
from fcaffe.onnx.reading.cut import cut
from fcaffe.onnx.reading.graph import Draft, Inferred, Known, Reader, Shape, Step, Value
from fcaffe.onnx.reading.inference import definition, empty, fold, inferred, is_constant, is_defined
from fcaffe.onnx.reading.load import Node, Source, load, names_read, node_of
from fcaffe.onnx.reading.refused import UNKNOWN, reason_of
from fcaffe.onnx.reading.rules import FLOAT, FLOATS, MOVES, WHOLE, WIDE, rule_of
from fcaffe.onnx.writing.graph import free_name
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.merge_bn import merge_bn
from fcaffe.tools.target import Target, read_target


@dataclass(frozen=True)
class Converted:
    """A deploy net (a NetParameter), its weights, the types of its inputs, and the ONNX values of its blobs by name.

    `ends` are the ONNX values that the model was cut at, if it was.
    """

    net: pb.NetParameter
    model: Model
    types: dict[str, int]
    values: dict[str, str]
    ends: Sequence[str] = ()
    producer: str = ""  # the program that wrote the ONNX file


def from_onnx(
    path: str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: Target | None = None,
    merge: bool = False,
    ends: Sequence[str] = (),
) -> Converted:
    """Convert an ONNX file.

    Args:
        path: the file.
        shapes: of inputs by name, for inputs that the file leaves open. An open first axis is 1 without.
        target: says which of several ways to write an operation its toolchain reads; BVLC Caffe without.
        merge: whether normalisations by running statistics are folded into the weights.
        ends: values that are the outputs instead of the model's; "auto": those before the decoding of boxes.

    Raises:
        SnapshotError: the file is damaged.
        NetError: Caffe cannot express a node, or a node is wrong.
        UsageError: there is no value of the name of an end.
    """
    source = load(path, shapes or {})
    if ends:
        ends = source.outputs = cut(source, ends, path)
    with log.quiet():
        target, unread = target or read_target("bvlc"), set[bytes]()
        while True:
            draft = _draft(source, target, merge, unread)
            values = [_output(draft, name, path) for name in source.outputs]
            made = replace(_finished(draft, source, values), ends=ends)
            more = _slices_with_unread_pieces(made.net) - unread
            if not more or not target.misfit(made.net.layer[-1]):
                break
            unread |= more  # and convert anew, since the target does not take the Silence of these pieces
    if merge:
        merged = merge_bn(made.net, made.model)
        made = replace(made, net=merged.net, model=merged.model)
    return made


def _draft(source: Source, target: Target, merge: bool, unread_pieces: set[bytes]) -> Draft:
    """The nodes that the outputs need as layers, constants or refusals."""
    draft = Draft(source, target, merge, unread_pieces)
    draft.known.update(source.constants)
    for name, dims in source.inputs.items():
        made = draft.add("Input", [], name, 1, [], input_param={"shape": [{"dim": dims}]})
        made.tops[0].onnx = name
        draft.known[name] = made.tops[0]
    draft.types.update(source.types)
    draft.read.update(source.outputs)
    nodes = []
    for node in reversed(source.nodes):
        if not draft.read.isdisjoint(node.outputs):
            draft.read.update(names_read(node.proto))
            nodes.append(node)
    _read_nodes(draft, nodes[::-1])
    return draft


def _read_nodes(draft: Draft, nodes: Sequence[Node]) -> None:
    top_level = not draft.known.parents
    for node in nodes:
        step = Step(draft, node)
        for name, value, one in zip(node.outputs, _read(step), step.outputs, strict=False):
            if name:
                draft.known[name] = value
                draft.makers[name] = node
                if isinstance(value, Value):
                    draft.types[name] = one.type or FLOAT
                    value.onnx = value.onnx or (name if top_level else "")


def _read(step: Step) -> Sequence[Known]:
    """The outputs of a node: constants, blobs, or an error that names the node, its refusal."""
    step.outputs = [Inferred()] * len(step.node.outputs)
    try:
        if step.op == "If" and step.constant(0) is not None:  # the other branch is never computed
            return _graph(step, step.node.attributes["then_branch" if np.all(step.constant(0)) else "else_branch"])
        rule, constant = rule_of(step), is_constant(step)
        if rule is None and not constant and not is_defined(step):
            raise step.refuse(*reason_of(step))
        step.outputs = inferred(step)
        found = fold(step) if constant else empty(step)
        if found is None and rule is None and (graph := definition(step)) is not None:
            return _graph(step, graph, step.node.name)
        return found or _layers(step, rule)
    except FcaffeError as problem:
        words = str(problem)
        refusal = NetError(words) if words.startswith("node ") else step.error(words)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as problem:
        words = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
        if isinstance(problem, (AttributeError, LookupError, TypeError)):
            refusal = step.error(f"fcaffe fails to read it ({words}), which is a fault of fcaffe: please report it")
        else:
            refusal = step.error(f"its inputs or attributes do not fit together ({words})")
    return [refusal] * len(step.node.outputs)


def _graph(step: Step, graph: Any, within: str = "") -> Sequence[Known]:
    """The outputs of a graph that stands for the node, whose other names are its own."""
    net = step.net
    outer = net.known, net.types, net.makers
    net.known, net.types, net.makers = net.known.new_child(), net.types.new_child(), net.makers.new_child()
    try:
        net.known.update({tensor.name: onnx().numpy_helper.to_array(tensor) for tensor in graph.initializer})
        net.read.update(value.name for value in graph.output)
        net.read.update(*(names_read(proto) for proto in graph.node))
        _read_nodes(net, [node_of(proto, within) for proto in graph.node])
        found = {value.name: (net.known[value.name], net.types.get(value.name)) for value in graph.output}
    finally:
        net.known, net.types, net.makers = outer
    absent = step.error("it has no such output"), None
    ends = [found.get(name, absent) for name in step.node.outputs] if within else list(found.values())
    step.outputs = [Inferred(kind) for _, kind in ends]
    return [known for known, _ in ends]


def _layers(step: Step, rule: Reader | None) -> list[Value | np.ndarray]:
    """Add the layers of a node. The one that learns gets the node's name, or else the last; others that and their type.

    Raises NetError.
    """
    if rule is None:
        raise step.refuse("onnx has no definition of it for these inputs", UNKNOWN)
    kinds = {one.type for index, one in enumerate(step.outputs) if one.type and step.is_read(index)} - FLOATS
    if step.op not in MOVES and (kinds - WIDE or (kinds and step.op not in WHOLE)):
        raise step.refuse("it computes with whole numbers, and Caffe with float32", "cast its inputs to float32")
    with np.errstate(all="ignore"):
        found = rule(step)
    values = [found] if isinstance(found, Value) else found
    if name := step.unread():
        raise step.error(f"its {name} is not read: fcaffe knows no layers for it; use its default, or none")
    if any(step.is_read(index) for index in range(len(values), len(step.node.outputs))):
        raise step.refuse("fcaffe gives its first output only, and others are read", UNKNOWN)
    values = [_fitted(step, value, one.shape) for value, one in zip(values, step.outputs, strict=False)]
    learning = [made for made in step.made if made.blobs and not made.fixed]
    first = next(iter(learning or step.made[::-1]), None)
    for made in step.made:
        if not made.wanted:
            made.wanted = step.node.name if made is first else f"{step.node.name}/{made.kind.lower()}"
    return values


def _fitted(step: Step, value: Value | np.ndarray, shape: Shape | None) -> Value | np.ndarray:
    """The value in the shape that onnx infers, from which it may differ in axes of length 1. Raises NetError."""
    if shape is None or value.shape == shape or isinstance(value, np.ndarray):
        return value
    if [n for n in value.shape if n != 1] != [n for n in shape if n != 1]:
        raise step.error(f"onnx infers the shape {shape} for its output, and Caffe's layers give {value.shape}")
    return step.reshape(value, shape)


def _output(draft: Draft, name: str, path: str) -> Value:
    found = draft.known[name]
    if isinstance(found, NetError):
        raise type(found)(f"{path}: {found}") from found
    if isinstance(found, np.ndarray):
        raise SnapshotError(f'{path}: its output "{name}" does not depend on an input, so there is nothing to convert')
    return found


def _finished(draft: Draft, source: Source, outputs: list[Value]) -> Converted:
    """The layers that the outputs need, with names."""
    needed = {id(value.maker) for value in outputs}
    for made in reversed(draft.layers):
        if id(made) in needed:
            needed.update(id(bottom.maker) for bottom in made.bottoms)
    layers = [made for made in draft.layers if id(made) in needed or made.kind == "Input"]
    read = {id(bottom) for made in layers for bottom in made.bottoms}
    for name, value in zip(source.outputs, outputs, strict=True):
        if id(value) not in read and not value.name and value.maker.kind != "Input":
            value.name = name
        else:  # an output that is read as well, or that two names stand for
            layers.append(draft.add("Power", [value], name, 1, []))
            layers[-1].tops[0].name = name
            read.add(id(value))
    net, model = pb.NetParameter(name=source.name), Model(pb.NetParameter(name=source.name), [])
    taken, blobs, wanted = set[str](), set(source.outputs), {made.wanted for made in layers}
    for made in layers:
        param = made.param
        param.name = free_name(_stem(made.wanted, wanted) if source.own else made.wanted, taken)
        for top in made.tops:
            name = _stem(top.onnx, blobs) if source.own else top.onnx
            top.name = top.name or free_name(name or param.name, blobs)
        param.ClearField("phase")
        param.bottom[:] = [bottom.name for bottom in made.bottoms]
        param.top[:] = [top.name for top in made.tops]
        net.layer.append(param)
        model.layers.append(StoredLayer(param, [StoredBlob(blob.shape, blob) for blob in made.blobs]))
    tops = [top for made in layers for top in made.tops]
    if unread := [top.name for top in tops if id(top) not in read and top.name not in source.outputs]:
        net.layer.add(name=free_name("unused", taken), type="Silence", bottom=unread)
    values = {top.name: top.onnx for top in tops if top.onnx}
    return Converted(net, model, source.types, values, producer=source.producer)


def _slices_with_unread_pieces(net: pb.NetParameter) -> set[bytes]:
    """The parameters of Slices with a top that a Silence reads."""
    silent = {name for layer in net.layer if layer.type == "Silence" for name in layer.bottom}
    slices = (layer for layer in net.layer if layer.type == "Slice" and not silent.isdisjoint(layer.top))
    return {layer.slice_param.SerializeToString() for layer in slices}


def _stem(name: str, taken: set[str]) -> str:
    """`conv1` for `conv1:Conv`, as fcaffe writes it, if there is nothing else of this name."""
    stem = name.partition(":")[0]
    return stem if stem not in taken else name
