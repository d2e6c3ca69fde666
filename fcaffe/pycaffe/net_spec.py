"""pycaffe's `caffe.net_spec`: describes nets in Python, as functions of layers, and converts them to a NetParameter.

`layers` and `params` (L and P in most scripts) have a name for each layer type and each message of the schema, those of
forks included.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fcaffe.proto import caffe_pb2

LayerParams = dict["Function", Any]  # the LayerParameters so far, in their order


def param_name_dict() -> dict[str, str]:
    """Map each message to its field of LayerParameter, without `_param`: {"Convolution": "convolution", ...}.

    If two fields have the same message, the lower number, which is Caffe's own, counts.
    """
    fields = [field for field in caffe_pb2.LayerParameter.DESCRIPTOR.fields if field.name.endswith("_param")]
    return {
        field.message_type.name.removesuffix("Parameter"): field.name.removesuffix("_param")
        for field in sorted(fields, key=lambda field: field.number, reverse=True)
    }


def to_proto(*tops: Top) -> Any:
    """Return a NetParameter with all layers that the tops depend on; blobs and layers are named by type and number."""
    return _net_of(tops, {})


def assign_proto(proto: Any, name: str, val: Any) -> None:
    """Assign a Python value to a field: a dict to a message, a list to a repeated field.

    Another value for a repeated field becomes its only element.
    """
    field = proto.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise AttributeError(f'{proto.DESCRIPTOR.name} has no field "{name}"')
    target = getattr(proto, name)
    if isinstance(val, np.ndarray | np.generic):
        val = val.tolist()
    if hasattr(target, "extend"):
        values = val if isinstance(val, list | tuple) else [val]
        if values and isinstance(values[0], dict):
            for value in values:
                _assign_all(target.add(), value)
        else:
            target.extend(values)
    elif isinstance(val, dict):
        _assign_all(target, val)
    elif field.message_type is not None and isinstance(val, type(target)):
        target.CopyFrom(val)
    elif field.message_type is not None:
        raise AttributeError(f"{proto.DESCRIPTOR.name}.{name} is a {field.message_type.name}: give a dict, not {val!r}")
    else:
        setattr(proto, name, val)


class Top:
    """A top of a layer: number `n` of the tops of the function `fn`."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn = fn
        self.n = n

    def to_proto(self) -> Any:
        """A NetParameter with all layers that this blob depends on."""
        return to_proto(self)


class Function:
    """A layer: its type, its bottoms, which are Tops of others, and its parameters by name.

    The parameters `ntop`, the number of tops, and `in_place` are no fields of the schema and are taken out of `params`.
    """

    def __init__(self, type_name: str, inputs: Iterable[Top], params: dict[str, Any]) -> None:
        self.type_name = type_name
        self.inputs = tuple(inputs)
        for index, bottom in enumerate(self.inputs):
            if not isinstance(bottom, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(bottom)})")
        self.params = params
        self.ntop: int = params.pop("ntop", 1)
        self.in_place: bool = params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def _to_proto(self, layers: LayerParams, names: dict[Any, str], autonames: Counter[str]) -> None:
        """Append the layer after the layers of its bottoms."""
        if self in layers:
            return
        bottoms = []
        for bottom in self.inputs:
            bottom.fn._to_proto(layers, names, autonames)
            bottoms.append(layers[bottom.fn].top[bottom.n])
        layer = caffe_pb2.LayerParameter(type=self.type_name, bottom=bottoms)
        layer.top.extend(
            bottoms if self.in_place else [_named(top, self.type_name, names, autonames) for top in self.tops]
        )
        layer.name = _named(self.tops[0] if self.tops else self, self.type_name, names, autonames)
        for name, value in self.params.items():
            try:
                self._assign(layer, name, value)
            except TypeError as problem:  # such as 3.0 where Python 2 divided to 3
                raise TypeError(f'layer "{layer.name}" ({self.type_name}), {name}={value!r}: {problem}') from None
        layers[self] = layer

    def _assign(self, layer: Any, name: str, value: Any) -> None:
        """Assign a parameter to the message of the layer's type if that has such a field, else to the layer."""
        own = _param_names.get(self.type_name)
        if own and not name.endswith("param") and name in getattr(layer, f"{own}_param").DESCRIPTOR.fields_by_name:
            assign_proto(getattr(layer, f"{own}_param"), name, value)
        elif name in layer.DESCRIPTOR.fields_by_name:
            assign_proto(layer, name, value)
        else:
            others = [
                field.name
                for field in layer.DESCRIPTOR.fields
                if field.message_type is not None and name in field.message_type.fields_by_name
            ]
            remedy = f"; {', '.join(others)} may have it: give {others[0]}=dict({name}=...)" if others else ""
            raise AttributeError(f'the layer type {self.type_name} has no parameter "{name}"{remedy}')


class NetSpec:
    """Tops under names of the user's choice: `n.conv1 = L.Convolution(n.data, ...)`, or `n["conv1"] = ...`."""

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Top | Function) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by copy, pickle and IPython
            raise AttributeError(name)
        if name not in self.tops:
            raise KeyError(f'the NetSpec has no "{name}"; it has {", ".join(self.tops) or "nothing yet"}')
        return self.tops[name]

    def __setitem__(self, key: str, value: Top | Function) -> None:
        setattr(self, key, value)

    def __getitem__(self, item: str) -> Any:
        return getattr(self, item)

    def __delitem__(self, name: str) -> None:
        del self.tops[name]

    def keys(self) -> list[str]:
        """The names, in their order; this and the next two are of SSD's fork."""
        return list(self.tops)

    def vals(self) -> list[Any]:
        """The tops, in their order."""
        return list(self.tops.values())

    def update(self, name: str, params: dict[str, Any]) -> None:
        """Set further parameters of the layer whose top has this name."""
        named = self.tops[name]
        (named.fn if isinstance(named, Top) else named).params.update(params)

    def to_proto(self) -> Any:
        """A NetParameter with all layers that the tops depend on, under the names that they were given."""
        return _net_of(self.tops.values(), {top: name for name, top in self.tops.items()})


class Layers:
    """A function for each layer type: `L.Convolution(bottom, kernel_size=3)` returns its Top.

    With ntop=0 it returns the Function itself, and with a larger ntop a tuple of Tops.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def layer_fn(*args: Top, **kwargs: Any) -> Any:
            fn = Function(name, args, kwargs)
            if fn.ntop == 0:
                return fn
            return fn.tops[0] if fn.ntop == 1 else fn.tops

        return layer_fn


class Parameters:
    """The constants of each message: `P.Pooling.MAX` is PoolingParameter.MAX."""

    def __getattr__(self, name: str) -> Any:
        message = getattr(caffe_pb2, f"{name}Parameter", None)
        if message is None:
            raise AttributeError(f"the schema has no message {name}Parameter, which params.{name} would be")
        return message


def _net_of(functions: Iterable[Any], names: dict[Any, str]) -> Any:
    """Return the NetParameter of Tops, or of Functions without tops."""
    layers: LayerParams = {}
    autonames: Counter[str] = Counter()
    for function in functions:
        getattr(function, "fn", function)._to_proto(layers, names, autonames)
    return caffe_pb2.NetParameter(layer=layers.values())


def _named(what: Any, type_name: str, names: dict[Any, str], autonames: Counter[str]) -> str:
    """Return the name of a Top or Function. Without a name it gets its type with the next number."""
    if what not in names:
        autonames[type_name] += 1
        names[what] = f"{type_name}{autonames[type_name]}"
    return names[what]


def _assign_all(proto: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        assign_proto(proto, name, value)


_param_names = param_name_dict()
layers = Layers()
params = Parameters()
