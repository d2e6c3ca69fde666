"""A Caffe net in the making, and the registry of functions that read ONNX's operators."""

from __future__ import annotations

import functools
import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe.errors import NetError
from fcaffe.net import Blob
from fcaffe.net.registry import create_layer
from fcaffe.onnx.library import onnx
from fcaffe.onnx.onnx_file import ROOM
from fcaffe.onnx.reading.load import Node, Source, as_float, attribute_of
from fcaffe.onnx.writing.graph import registration
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.shapes import hollow_context
from fcaffe.tools.target import Target

Shape = tuple[int, ...]
_FIXED = "export it for fixed sizes (no dynamic axes, or with --input-shape), so that sizes are constants"
MOST_PIECES = 512  # tops of one Slice, or bottoms of one Concat, to move values by


@dataclass(eq=False)
class Value:
    """A blob of the net."""

    shape: Shape
    maker: Made
    onnx: str = ""  # the first ONNX value that it stands for
    name: str = ""  # of the blob, at the end
    unpadded: tuple[Value, list[int], list[int]] | None = None  # images that a Pad adds zeros to, at both ends of axes
    transposed: tuple[Value, list[int]] | None = None  # the blob with its axes in another order, and this order


@dataclass(eq=False)
class Made:
    """A layer of the net. Its bottoms and tops are named at the end."""

    param: Any
    wanted: str
    bottoms: list[Value]
    tops: list[Value] = field(default_factory=list)
    blobs: list[np.ndarray] = field(default_factory=list)
    fixed: bool = False  # its blobs are not learned

    @property
    def kind(self) -> str:
        return str(self.param.type)


Known = Value | np.ndarray | NetError  # what an ONNX value has become: the error is the refusal of its node
Reader = Callable[["Step"], "Value | Sequence[Value | np.ndarray]"]
readers: dict[str, Reader] = {}


reads = registration(readers)  # a function that adds the layers of operators, and returns the blobs of the outputs


@dataclass(frozen=True)
class Inferred:
    """The type of an output, by ONNX's number, and its shape, each if it is known."""

    type: int | None = None
    shape: Shape | None = None


class Draft:
    """Layers in order, and what each ONNX value has become, with its type.

    A graph within a node has names of its own, which are the first map of each chain.
    """

    def __init__(self, source: Source, target: Target, merge: bool, unread_pieces: set[bytes]) -> None:
        self.opset, self.target, self.merge = source.opset, target, merge
        self.unread_pieces = unread_pieces  # Slices, by their parameters, of which pieces would end in a Silence
        self.known: ChainMap[str, Known] = ChainMap()
        self.types: ChainMap[str, int] = ChainMap()
        self.makers: ChainMap[str, Node] = ChainMap()  # nodes by the names of their outputs
        self.read: set[str] = set()  # names of values that nodes or the user read
        self.layers: list[Made] = []
        self._context = hollow_context()
        self._room = ROOM[0] * source.size + ROOM[1]

    def add(
        self, kind: str, bottoms: Sequence[Value], wanted: str, tops: int, blobs: Sequence[np.ndarray], **fields: Any
    ) -> Made:
        """Add a layer, and set it up for the shapes of its tops. Raises NetError."""
        ends = {"bottom": [value.onnx or "?" for value in bottoms], "top": [str(index) for index in range(tops)]}
        param = pb.LayerParameter(name=wanted, type=kind, phase=pb.TEST, **ends, **fields)
        layer = create_layer(param, self._context)
        xp = self._context.engine.xp
        outs = [Blob(xp) for _ in range(tops)]
        layer.initialize([Blob(xp, value.shape) for value in bottoms], outs)
        wanted_shapes, shapes = [blob.shape for blob in layer.blobs], [blob.shape for blob in blobs]
        if wanted_shapes != shapes:
            raise NetError(f"its constants have the shapes {shapes}, and Caffe's layer takes {wanted_shapes}")
        made = Made(param, wanted, list(bottoms), blobs=list(blobs))
        made.tops = [Value(blob.shape, made) for blob in outs]
        self.layers.append(made)
        return made

    def take(self, count: int) -> None:
        """Account for an array of so many values. Raises NetError if there is no room for it."""
        self._room -= 4 * count
        if self._room < 0:
            raise NetError("its constants would take many times the memory of the file")


@dataclass
class Step:
    """A node for the function that reads it: its inputs and attributes, and methods that add layers.

    It records what the function reads. Whatever is left is an error unless it has no effect (see `unread`).
    """

    net: Draft
    node: Node
    outputs: Sequence[Inferred] = ()
    made: list[Made] = field(default_factory=list)  # the layers that it has become
    seen: set[str | int] = field(default_factory=set)  # attributes and inputs that have been read

    # --- the node ---

    @property
    def op(self) -> str:
        return self.node.op

    @functools.cached_property
    def schema(self) -> Any:
        """The operator's definition in the version of the file, or None for one of another domain."""
        known = self.node.proto.domain in ("", "ai.onnx")
        return onnx().defs.get_schema(self.op, self.net.opset) if known else None

    def default(self, name: str) -> Any:
        """The default of an attribute by the definition, or None."""
        known = self.schema.attributes if self.schema else {}
        value = known[name].default_value if name in known else onnx().AttributeProto()
        return attribute_of(value) if value.type else None

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        """An attribute, or else the definition's default, or else this one."""
        self.seen.add(name)
        found = self.node.attributes[name] if name in self.node.attributes else self.default(name)
        return otherwise if found is None else found

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] != ""

    def known(self, index: int) -> Value | np.ndarray:
        """The blob or constant of an input. Raises the refusal of the node that should have written it."""
        if not self.has(index):
            raise self.error(f"it has no input {index}")
        self.seen.add(index)
        found = self.net.known[self.node.inputs[index]]
        if isinstance(found, NetError):
            raise found
        return found

    def is_read(self, index: int) -> bool:
        """Whether an output is read."""
        return index < len(self.node.outputs) and self.node.outputs[index] in self.net.read

    def unread(self) -> str:
        """An attribute that is not at its default, or an input, that has not been read; "" if there is none."""
        for name, value in self.node.attributes.items():
            if name not in self.seen and not np.array_equal(value, self.default(name)):
                return name
        inputs = (index for index in range(len(self.node.inputs)) if self.has(index) and index not in self.seen)
        return next((f"input {index}" for index in inputs), "")

    def constant(self, index: int) -> np.ndarray | None:
        """The input if it is constant."""
        found = self.known(index) if self.has(index) else None
        return found if isinstance(found, np.ndarray) else None

    def weights(self, index: int, what: str) -> np.ndarray:
        """A constant in float32."""
        found = self.constant(index)
        if found is None:
            raise self.refuse(f"its {what} depend on the input of the model", f"make the {what} constants")
        return as_float(found)

    def number(self, index: int, attribute: str, otherwise: float = 0) -> float:
        """A number that is an attribute of older operators and a constant input of newer ones."""
        given = float(self.attribute(attribute, otherwise))
        if not self.has(index):
            return given
        found = self.weights(index, attribute)
        if found.size != 1:
            raise self.error(f"its {attribute} has {found.size} numbers, not one")
        return float(found.flat[0])

    def list_of(self, index: int, attribute: str = "") -> list[int] | None:
        """Integers that are an attribute of older operators and a constant input of newer ones; None without."""
        if not self.has(index):
            given = self.attribute(attribute) if attribute else None
            return None if given is None else list(given)
        found = self.constant(index)
        if found is None:
            raise self.refuse(f"its input {index} depends on the input of the model", _FIXED)
        if found.dtype.kind not in "iu" or found.ndim > 1:
            raise self.error(f"its input {index} is no list of whole numbers")
        return [int(value) for value in found.reshape(-1)]

    def value(self, index: int = 0) -> Value:
        """The blob of an input. A constant becomes a layer of its own."""
        found = self.known(index)
        return found if isinstance(found, Value) else self.held(found)

    @property
    def x(self) -> Value:
        return self.value(0)

    @property
    def shape(self) -> Shape:
        """The shape of the first output."""
        if self.outputs[0].shape is None:
            raise self.refuse("its shape does not follow from the shapes of its inputs and from constants", _FIXED)
        return self.outputs[0].shape

    # --- layers ---

    def layers(
        self,
        kind: str,
        *bottoms: Value,
        tops: int = 1,
        blobs: Iterable[np.ndarray] = (),
        fixed: bool = False,
        name: str = "",
        **fields: Any,
    ) -> list[Value]:
        """Add a layer with these messages, and return its tops. Blobs that are `fixed` are not learned.

        `name` is that of a layer that this one replaces.
        """
        arrays = [np.asarray(blob, np.float32, "C") for blob in blobs]
        if fixed:
            fields["param"] = [{"lr_mult": 0, "decay_mult": 0} for _ in arrays]
        made = self.net.add(kind, bottoms, name, tops, arrays, **fields)
        made.fixed = fixed
        self.made.append(made)
        return made.tops

    def layer(self, kind: str, *bottoms: Value, **more: Any) -> Value:
        return self.layers(kind, *bottoms, **more)[0]

    def takes(self, kind: str, bottoms: int = 1, **messages: Any) -> bool:
        """Whether the target takes a layer with these messages."""
        return not self.net.target.misfit(pb.LayerParameter(type=kind, bottom=["x"] * bottoms, **messages))

    def layer_if_taken(self, kind: str, *bottoms: Value, **more: Any) -> Value | None:
        """Add a layer if the target takes it."""
        messages = {name: value for name, value in more.items() if name.endswith("_param")}
        return self.layer(kind, *bottoms, **more) if self.takes(kind, len(bottoms), **messages) else None

    def filled(self, shape: Shape, value: float) -> Value:
        """A blob of equal values."""
        filler = {"type": "constant", "value": value}
        return self.layer("DummyData", dummy_data_param={"shape": [{"dim": shape}], "data_filler": [filler]})

    def held(self, array: np.ndarray) -> Value:
        """A constant as a blob."""
        array = as_float(array)
        if array.size and (array == array.flat[0]).all():
            return self.filled(array.shape, float(array.flat[0]))
        return self.layer("Parameter", blobs=[array], fixed=True, parameter_param={"shape": {"dim": array.shape}})

    def power(self, x: Value, scale: float = 1, shift: float = 0, power: float = 1, name: str = "") -> Value:
        """(shift + scale * x) ** power. A term behind a factor becomes that of the same layer."""
        before, p = x.maker, x.maker.param.power_param
        if scale == power == 1 and before.kind == "Power" and p.power == 1 and p.shift == 0:
            x, scale, name = before.bottoms[0], p.scale, before.wanted
        given = {"power": power, "scale": scale, "shift": shift}
        given = {key: value for key, value in given.items() if value != (0 if key == "shift" else 1)}
        return self.layer("Power", x, power_param=given, name=name) if given else x

    def reshape(self, x: Value, shape: Shape) -> Value:
        """Successive reshapes become one, or none."""
        if math.prod(shape) != math.prod(x.shape):
            raise self.error(f"it cannot give {x.shape} the shape {tuple(shape)}")
        while x.shape != shape and x.maker.kind in ("Reshape", "Flatten"):
            x = x.maker.bottoms[0]
        if x.shape == shape:
            return x
        if len(shape) == 2 and len(x.shape) > 1 and shape[0] == x.shape[0]:
            return self.layer("Flatten", x)
        dims = [0, *shape[1:]] if shape and x.shape[:1] == shape[:1] else shape  # any batch
        return self.layer("Reshape", x, reshape_param={"shape": {"dim": dims}})

    def sum(self, *terms: Value, coefficients: Sequence[float] = ()) -> Value:
        given = {"coeff": coefficients} if any(one != 1 for one in coefficients) else {}
        p = {"operation": pb.EltwiseParameter.SUM, **given}
        if given and not self.takes("Eltwise", len(terms), eltwise_param=p):
            return self.sum(*(self.power(one, scale=factor) for one, factor in zip(terms, coefficients, strict=True)))
        return self.layer("Eltwise", *terms, eltwise_param=p)

    def product(self, *factors: Value) -> Value:
        return self.layer("Eltwise", *factors, eltwise_param={"operation": pb.EltwiseParameter.PROD})

    def zeros(self, *shape: int) -> np.ndarray:
        """A constant to be filled."""
        self.net.take(math.prod(shape))
        return np.zeros(shape, np.float32)

    def axis(self, axis: int, shape: Shape) -> int:
        """A negative axis counts from the end."""
        if not -len(shape) <= axis < len(shape):
            raise self.error(f"it has no axis {axis} in its input of shape {shape}")
        return axis % len(shape)

    # --- errors ---

    def error(self, message: str) -> NetError:
        return NetError(f"{self.node}: {message}")

    def refuse(self, reason: str, remedy: str) -> NetError:
        """The error for a node that Caffe cannot express: the reason, and what to change in the exporting model."""
        return self.error(f"cannot be converted to Caffe: {reason}; {remedy}")


def sizes(field: str, values: Sequence[int]) -> dict[str, object]:
    """One number for each spatial axis, as the fields of convolution_param have them.

    `field` is kernel, stride or pad. The defaults are left out.
    """
    if all(value == (0 if field == "pad" else 1) for value in values) and field != "kernel":
        return {}
    one = "kernel_size" if field == "kernel" else field
    if len(set(values)) == 1:
        return {one: [values[0]]}
    return {f"{field}_h": values[0], f"{field}_w": values[1]} if len(values) == 2 else {one: list(values)}
