"""An ONNX file as a Caffe net with its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import FcaffeError, NetError, SnapshotError
from fcaffe.model_files import Model, StoredLayer
from fcaffe.onnx.graph import free_name
from fcaffe.onnx.reading import (  # noqa: F401 - each fills the registry
    activations,
    arithmetic,
    convolution,
    normalization,
    pooling,
    recurrent,
    reorder,
    resize,
)
from fcaffe.onnx.reading.cut import cut
from fcaffe.onnx.reading.folding import definition, fold, shapes_of
from fcaffe.onnx.reading.graph import Draft, Known, Step, Value, readers
from fcaffe.onnx.reading.load import Node, Source, array_of, load, node_of
from fcaffe.onnx.reading.refused import REASONS
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.merge_bn import merge_bn
from fcaffe.tools.target import Target, read_target

MANY = 500  # layers of a net of ordinary operators
UNKNOWN = "write the model by operators in docs/ways-in.md, or export only the module before it"


@dataclass(frozen=True)
class Converted:
    """A deploy net (a NetParameter), its weights, its integer inputs, and the ONNX values of its blobs by name.

    `ends` are the ONNX values that the model was cut at, if it was.
    """

    net: pb.NetParameter
    model: Model
    integers: set[str]
    values: dict[str, str]
    ends: Sequence[str] = ()


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
        draft = _draft(source, target or read_target("bvlc"), merge)
        values = [_output(draft, name, path) for name in source.outputs]
        made = replace(_finished(draft, source, values), ends=ends)
    if merge:
        merged = merge_bn(made.net, made.model)
        made = replace(made, net=merged.net, model=merged.model)
    if len(made.net.layer) > max(MANY, 10 * len(source.nodes)):
        log.warning(
            f"{path}: {len(source.nodes)} operators have become {len(made.net.layer)} layers, as adaptive pooling "
            "to a size that does not divide the map does; export for another input size, or with another pooling"
        )
    return made


def _draft(source: Source, target: Target, merge: bool) -> Draft:
    """All nodes as layers, constants or refusals."""
    draft = Draft(source, target, merge)
    draft.known.update(source.constants)
    for name, dims in source.inputs.items():
        made = draft.add("Input", [], name, 1, [], input_param={"shape": [{"dim": dims}]})
        made.tops[0].onnx = name
        draft.known[name] = made.tops[0]
    _read_nodes(draft, source.nodes)
    return draft


def _read_nodes(draft: Draft, nodes: Sequence[Node]) -> None:
    for node in nodes:
        for name, value in zip(node.outputs, _read(Step(draft, node)), strict=False):
            if name:
                draft.known[name] = value
                draft.makers[name] = node
                if isinstance(value, Value):
                    value.onnx = value.onnx or name


def _read(step: Step) -> Sequence[Known]:
    """The outputs of a node: constants, blobs, or an error that names the node, its refusal."""
    try:
        if step.op == "If" and step.constant(0) is not None:  # the other branch is never computed
            return _graph(step, step.node.attributes["then_branch" if np.all(step.constant(0)) else "else_branch"])
        step.shapes = shapes_of(step)
        found = fold(step)
        if found is None and step.op not in readers and (graph := definition(step)) is not None:
            return _graph(step, graph)
        return found or _layers(step)
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


def _graph(step: Step, graph: Any) -> Sequence[Known]:
    """The outputs of a graph that stands for the node."""
    step.net.known.update({tensor.name: array_of(tensor) for tensor in graph.initializer})
    _read_nodes(step.net, [node_of(proto) for proto in graph.node])
    return [step.net.known[value.name] for value in graph.output]


def _layers(step: Step) -> list[Value]:
    """Add the layers of a node. The one that learns gets the node's name, or else the last; others that and their type.

    Raises NetError.
    """
    if step.op not in readers:
        raise step.refuse(*REASONS.get(step.op, ("fcaffe knows no layers for this operator", UNKNOWN)))
    with np.errstate(all="ignore"):
        found = readers[step.op](step)
    values = found if isinstance(found, list) else [found]
    if len(values) < sum(1 for name in step.node.outputs if name):
        raise step.error(f"it has {len(step.node.outputs)} outputs")
    for index, (value, shape) in enumerate(zip(values, step.shapes, strict=False)):
        if shape is not None and math.prod(shape) == math.prod(value.shape):  # onnx infers some poolings' sizes wrongly
            values[index] = step.reshape(value, shape)
    learning = [made for made in step.made if made.blobs and not made.fixed]
    first = next(iter(learning or step.made[::-1]), None)
    for made in step.made:
        if not made.wanted:
            made.wanted = step.node.name if made is first else f"{step.node.name}/{made.kind.lower()}"
    return values


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
        param.name = free_name(_stem(made.wanted, wanted), taken)
        for top in made.tops:
            top.name = top.name or free_name(_stem(top.onnx, blobs) or param.name, blobs)
        param.ClearField("phase")
        param.bottom[:] = [bottom.name for bottom in made.bottoms]
        param.top[:] = [top.name for top in made.tops]
        net.layer.append(param)
        model.layers.append(StoredLayer(param, [StoredBlob(blob.shape, blob) for blob in made.blobs]))
    tops = [top for made in layers for top in made.tops]
    if unread := [top.name for top in tops if id(top) not in read and top.name not in source.outputs]:
        net.layer.add(name=free_name("unused", taken), type="Silence", bottom=unread)
    return Converted(net, model, source.integers, {top.name: top.onnx for top in tops if top.onnx})


def _stem(name: str, taken: set[str]) -> str:
    """`conv1` for `conv1:Conv`, as fcaffe's own files have it, if there is nothing else of this name."""
    stem = name.partition(":")[0]
    return stem if stem not in taken else name
