"""A graph of ONNX nodes, and the registry of functions that write the nodes of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from fcaffe import plugins
from fcaffe.errors import LayerError
from fcaffe.net import Layer
from fcaffe.net.node import Node
from fcaffe.onnx.library import OPSET, onnx
from fcaffe.proto.forks import has_effect

Shape = tuple[int, ...]
Writer = Callable[["Step"], "str | Sequence[str]"]

F = TypeVar("F")

_writers: dict[str, Writer] = {}
_OF_TRAINING = {"clipping_threshold", "debug_info", "engine", "momentum", "moving_average_fraction", "stable_prod_grad"}


def registration(table: dict[str, F]) -> Callable[..., Callable[[F], F]]:
    """A decorator that enters a function into a table under the names that it is called with."""

    def register(*names: str) -> Callable[[F], F]:
        def add(function: F) -> F:
            for name in names:
                assert table.setdefault(name, function) is function, f"{name} has two functions"
            return function

        return add

    return register


writes = registration(_writers)  # a function that writes the nodes of layer types, and returns the names of the tops


def writer_of(layer: Layer) -> Writer:
    """The function for a layer's type. Raises LayerError if there is none."""
    plugins.load_own("onnx")
    if layer.type not in _writers:
        raise layer.error("fcaffe does not know how to write layers of this type in ONNX")
    return _writers[layer.type]


class Fields:
    """A message that records which of its fields are read."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self.seen: set[str] = set()
        self.inner: dict[str, Fields] = {}  # messages that have been read, by their fields

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._message, name)
        self.seen.add(name)
        return self.inner.setdefault(name, Fields(value)) if isinstance(value, Message) else value

    def unread(self) -> Iterator[str]:
        """Yields the fields that have not been read and are not at their defaults, but for those of training alone."""
        default = type(self._message)()
        for descriptor, value in self._message.ListFields():
            name = descriptor.name
            counts = has_effect(descriptor) and name not in _OF_TRAINING and not name.endswith("filler")
            if counts and name not in self.seen and value != getattr(default, name):
                yield name
        for name, message in self.inner.items():
            yield from (f"{name}.{one}" for one in message.unread())


@dataclass
class Graph:
    """Nodes in execution order, and constants by name."""

    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)  # names of values
    node_names: set[str] = field(default_factory=set)
    opset: int = OPSET

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **attributes: Any) -> None:
        name = free_name(name, self.node_names)
        self.nodes.append(onnx().helper.make_node(kind, list(inputs), list(outputs), name=name, **attributes))

    def value(self, wanted: str) -> str:
        """A unique name for a value."""
        return free_name(wanted, self.taken)

    def constant(self, array: np.ndarray, wanted: str) -> str:
        name = self.value(wanted)
        self.constants[name] = array
        return name

    def rename(self, names: dict[str, str]) -> None:
        """Rename values."""
        for node in self.nodes:
            for ends in (node.input, node.output):
                ends[:] = [names.get(name, name) for name in ends]


@dataclass
class Step:
    """A layer for the function that writes its nodes: names and shapes of its bottoms, and methods that add nodes.

    These methods return the name of the new value. `param` records the fields that the function reads. It says by
    `layer_has` which fields the layer's attributes and shapes stand for.
    """

    graph: Graph
    node: Node
    inputs: list[str]
    blobs: list[str]  # names of the layer's parameters, which are constants of the graph
    first: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.layer: Any = self.node.layer  # whose attributes depend on its type
        self.param: Any = Fields(self.layer.param)
        self.bottoms, self.tops = ([blob.shape for blob in blobs] for blobs in (self.node.bottoms, self.node.tops))

    @property
    def x(self) -> str:
        """The first bottom."""
        return self.inputs[0]

    def layer_has(self, **fields: str) -> None:
        """Record fields of messages as read, since attributes and shapes of the layer follow from them."""
        for message, names in fields.items():
            getattr(self.param, message).seen.update(names.split())

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        made = [self.graph.value(f"{self.layer.name}:{kind}") for _ in range(outputs)]
        self.graph.add(kind, inputs, made, self.layer.name if self.first else f"{self.layer.name}:{kind}", **attributes)
        self.first = False
        return made

    def array(self, values: Any, what: str) -> str:
        """A constant of float32."""
        return self.graph.constant(np.array(values, np.float32), f"{self.layer.name}:{what}")

    def integers(self, values: Sequence[int], what: str) -> str:
        """A constant of int64 with one axis."""
        return self.graph.constant(np.array(values, np.int64), f"{self.layer.name}:{what}")

    def slice(
        self, x: str, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()
    ) -> str:
        bounds = {"starts": starts, "ends": ends, "axes": axes} | ({"steps": steps} if steps else {})
        return self.op("Slice", x, *(self.integers(values, what) for what, values in bounds.items()))

    def reversed(self, x: str, axes: Sequence[int]) -> str:
        """`x` with these axes in reverse order."""
        return self.slice(x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))

    def split(self, x: str, sizes: Sequence[int], axis: int = 0) -> list[str]:
        """The pieces of these sizes along an axis."""
        return self.ops("Split", x, self.integers(sizes, "sizes"), outputs=len(sizes), axis=axis)

    def times(self, x: str, factor: float) -> str:
        return x if factor == 1 else self.op("Mul", x, self.array(factor, "factor"))

    def plus(self, x: str, term: float) -> str:
        return x if term == 0 else self.op("Add", x, self.array(term, "term"))

    def reduce(self, kind: str, x: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """A reduction over axes, which are an attribute of older operators and an input of newer ones."""
        if kind != "ReduceSum" and self.graph.opset < 18:
            return self.op(kind, x, axes=list(axes), keepdims=keepdims)
        return self.op(kind, x, self.integers(axes, "axes"), keepdims=keepdims)

    def reshape(self, x: str, old: Shape, new: Shape) -> str:
        """Reshape `x` from `old` to `new`. An unchanged first axis may have any size."""
        if old == new:
            return x
        if 0 in new:
            return self.op("Reshape", x, self.integers(new, "shape"), allowzero=1)
        same = bool(old and new) and old[0] == new[0]
        return self.op("Reshape", x, self.integers([0, *new[1:]] if same else new, "shape"))

    def cast(self, x: str, to: str) -> str:
        """Cast `x` to an ONNX type, such as "INT64"."""
        return self.op("Cast", x, to=getattr(onnx().TensorProto, to))

    def blob_in_shape(self, index: int, shape: Shape) -> str:
        """The parameter of this index, in another shape."""
        name = self.blobs[index]
        if self.graph.constants[name].shape == shape:
            return name
        made = f"{name}:{'x'.join(map(str, shape))}"
        if made not in self.graph.constants:
            self.graph.constant(self.graph.constants[name].reshape(shape), made)
        return made

    def refuse(self, reason: str) -> LayerError:
        """The error for a layer that ONNX cannot express."""
        return self.layer.error(f"cannot be written in ONNX: {reason}")


def write(step: Step) -> list[str]:
    """Add the nodes of a layer, and return the names of its tops. Raises LayerError."""
    tops = writer_of(step.layer)(step)
    if unread := [f"{name}.{one}" for name, message in step.param.inner.items() for one in message.unread()]:
        raise step.refuse(f"fcaffe knows no operators for {' and '.join(unread)}; leave out what is not needed")
    return [tops] if isinstance(tops, str) else [*tops]


def free_name(wanted: str, taken: set[str]) -> str:
    """The name, with a number appended if it is taken. It is taken from then on."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name
