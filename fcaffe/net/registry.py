"""The registry of layer types: what `type: "..."` in a prototxt stands for.

Loading a module registers its types. `declare` says which module has a type, and the first net that names the type
loads it. Code that builds nets imports `fcaffe.layers`, and `fcaffe.pycaffe` for the type "Python".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from fcaffe import log
from fcaffe.errors import NetError
from fcaffe.net.context import Context
from fcaffe.net.layer import Layer
from fcaffe.proto.forks import PYTHON_INSTEAD
from fcaffe.suggestions import nearest

Creates = Callable[[Any, Context], Layer]  # a class of layers, or a function that chooses one

_registry: dict[str, Creates] = {}
_modules: dict[str, list[str]] = {}  # the modules to load for a type that was declared

LayerClass = TypeVar("LayerClass", bound=Callable[[Any, Context], Layer])


def register(layer_type: str) -> Any:
    """Decorator of the class for `type: "layer_type"`, or of a function of (param, context) that chooses one by the
    fields of `param`."""

    def add(cls: LayerClass) -> LayerClass:
        other: Any = _registry.get(layer_type) or _modules.get(layer_type, [cls.__module__])[0]
        if other != cls.__module__:
            raise ValueError(f"layer type {layer_type} is registered twice: {other} and {cls}")
        _registry[layer_type] = cls
        return cls

    return add


def declare(package: str, modules: Mapping[str, str]) -> None:
    """Let the first net that names one of these types load its module.

    `modules` has the types that need a module of the package, with blanks between them. The first module of a type
    registers it.
    """
    for module, types in modules.items():
        for layer_type in types.split():
            _modules.setdefault(layer_type, []).append(f"{package}.{module}")


def layer_types() -> list[str]:
    """All type names that a prototxt may have, in alphabetical order."""
    return sorted(_registry.keys() | _modules.keys())


def registered(layer_type: str) -> Creates | None:
    """The class of a layer type, or the function that chooses one; None for an unknown type. Loads its modules."""
    for module in _modules.get(layer_type, ()):
        import_module(module)
    return _registry.get(layer_type)


def follows_batches(param: Any) -> bool:
    """See Layer.follows_batches, for the layer of a LayerParameter."""
    kind: Any = registered(param.type)
    return isinstance(kind, type) and issubclass(kind, Layer) and kind.follows_batches(param)


def create_layer(param: Any, context: Context) -> Layer:
    """The layer for a LayerParameter. Raises NetError, which names the nearest type, for an unknown one."""
    log.making_layer(param.name)
    if create := registered(param.type):
        return create(param, context)
    message = f'layer "{param.name}": unknown layer type "{param.type}"'
    known = layer_types()
    near = nearest(param.type.replace("_", ""), known)
    hint = f"did you mean {near}?" if near else f"known types: {', '.join(known)}"
    raise NetError(f"{message} ({hint}); if it is a fork's, {PYTHON_INSTEAD}")
