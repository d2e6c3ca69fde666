"""Python: a layer type whose layers are instances of user classes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from itertools import compress
from types import ModuleType
from typing import Any

import numpy as np

from fcaffe import as_caffe, log
from fcaffe.errors import LayerError
from fcaffe.net.blob import Blob
from fcaffe.net.layer import State, Traits
from fcaffe.net.placements import Placements, by_sample, replicated
from fcaffe.net.registry import register
from fcaffe.net.script.host_arrays import HostViews, host_views
from fcaffe.pycaffe.blob import Blob as BlobFace
from fcaffe.pycaffe.layer import Layer, Phase, UserLayer
from fcaffe.python_path import add_current_folder

FCAFFE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # the folder of the package, with a slash


class UserCodeError(LayerError):
    """Wraps an exception of a user's layer. It is also of that exception's type, since scripts for Caffe catch that."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError, if it is one, would quote it


@register("Python")
class Python(UserLayer):
    """Calls `setup`, `reshape`, `forward` and `backward` of the class python_param.layer in python_param.module.

    The class derives from `caffe.Layer`; it finds python_param.param_str as `self.param_str`, its phase as
    `self.phase`, and makes parameters by `self.blobs.add_blob(*shape)`. Its top is a loss only with a loss_weight in
    the prototxt. `share_in_parallel` changes nothing: every worker is a process of its own, with its own instance. Of
    several workers the first one calls the methods for all, on whole blobs, unless the class says `by_sample` or the
    layer has no tops.
    """

    traits = Traits(needs_host=True, runs_user_code=True)
    views: HostViews

    def rule(self, bottom: list[Blob]) -> Placements:
        """Without tops no values depend on the code. In shards, which are threads, the first one calls it for all."""
        may_split = (self._user_class.by_sample or not self.param.top) and not self.context.workers.in_shards
        return (by_sample if may_split else replicated)(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.views = host_views(self.engine)
        self.views.prepare([*bottom, *top])
        if not self.is_split:
            self.context.workers.run_shards_in_step()
        self.user_layer = self._make_user_layer()
        self._call("setup", bottom, top)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._call("reshape", bottom, top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        """Where several workers have whole blobs, the first one calls the user's code for all."""
        if self.is_split or self.context.workers.rank == 0:
            self._call("forward", bottom, top)
        for blob in () if self.is_split else top:
            self.copy_from_first(blob)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if self.is_split:
            return self._call("backward", top, propagate_down, bottom)
        workers, own = self.context.workers, [blob.diff.copy() for blob in top]
        for blob in top:
            blob.diff[...] = workers.sum_array(blob.diff)
        if workers.rank == 0:
            self._call("backward", top, propagate_down, bottom)
        else:
            for blob in compress(bottom, propagate_down):
                blob.diff[...] = 0
        for blob, diff in zip(top, own, strict=True):
            if blob not in bottom:
                blob.diff[...] = diff

    def state(self) -> State:
        given = self._ask("snapshot_state")
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise self.error(f"snapshot_state must return a dict of arrays by names, not {given!r:.80}")
        return {name: np.array(values) for name, values in given.items()}

    def restore_state(self, state: State) -> None:
        self._ask("restore_state", {name: array.copy() for name, array in state.items()})

    def _ask(self, method: str, *arguments: Any) -> Any:
        cls = type(self.user_layer)
        with self._errors_named(f"{cls.__module__}.{cls.__name__}.{method}"):
            return getattr(self.user_layer, method)(*arguments)

    def _call(self, method: str, *arguments: list[Any]) -> None:
        """Call the user's method with pycaffe's blobs."""
        with self.views.user_at_work():
            self._ask(method, *([self._face(value) for value in values] for values in arguments))

    def _face(self, value: Any) -> Any:
        return BlobFace(value, self.views) if isinstance(value, Blob) else value

    @functools.cached_property
    def _user_class(self) -> Any:
        as_caffe.provide_caffe()
        p = self.param.python_param
        if not p.module or not p.layer:
            raise self.error("python_param needs module, a Python module, and layer, a class in it")
        log.info(f"{code_of(self.param)} runs from here on")
        return self._find_class(self._import(p.module), p.layer)

    def _make_user_layer(self) -> Any:
        p, cls = self.param.python_param, self._user_class
        with self._errors_named(f"making a {p.module}.{p.layer}"):
            user_layer = cls(self.param)
        Layer._bind(user_layer, self)
        user_layer.param_str = p.param_str or p.param_str_
        user_layer.phase = Phase(self.phase)
        return user_layer

    def _import(self, name: str) -> ModuleType:
        """Import the module from the current folder or sys.path."""
        added = add_current_folder()
        try:
            return self._import_from_path(name)
        finally:
            if added and not as_caffe.keeps_current_folder:
                with contextlib.suppress(ValueError):
                    sys.path.remove("")

    def _import_from_path(self, name: str) -> ModuleType:
        importlib.invalidate_caches()  # the file may be younger than Python's list of its folder
        with self._errors_named(f"importing {name}"):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as problem:
                if not f"{name}.".startswith(f"{problem.name}."):
                    raise
        raise self.error(
            f'there is no Python module "{name}" in {os.getcwd()}, on PYTHONPATH or where packages are installed; '
            "start in its folder or add it to PYTHONPATH"
        )

    def _find_class(self, module: ModuleType, name: str) -> Any:
        where = f"module {module.__name__} ({getattr(module, '__file__', None) or 'without a file'})"
        if not hasattr(module, name):
            layers = [key for key, value in vars(module).items() if _is_user_layer(value) and value is not Layer]
            raise self.error(f'{where} has no class "{name}"; layers in it: {", ".join(layers) or "none"}')
        cls = getattr(module, name)
        if not _is_user_layer(cls):
            message = f'"{name}" in {where} is no layer: it must be a class that derives from caffe.Layer'
            other = sys.modules.get("caffe")
            if getattr(other, "Layer", None) is not Layer:
                file = getattr(other, "__file__", None)
                message += f"; this process has another caffe ({file}), write `import fcaffe as caffe` in the module"
            raise self.error(message)
        return cls

    @contextlib.contextmanager
    def _errors_named(self, what: str) -> Iterator[None]:
        """Turn an exception of user code into a UserCodeError."""
        try:
            yield
        except Exception as problem:
            said = " ".join(str(problem).split())
            said = f"{type(problem).__name__}: {said}" if said else type(problem).__name__
            error = self.error(f"{what}: {said}{_line_of(problem)}")
            raise _error_class(type(problem))(str(error)) from problem


def code_of(param: Any) -> str:
    """Describe the user code of a layer, for the log."""
    p = param.python_param
    return f'layer "{param.name}": the code of the class {p.layer} of the Python module {p.module}'


def _error_class(kind: type[Exception]) -> type[UserCodeError]:
    """Return a subclass of UserCodeError and of this type, or UserCodeError if Python cannot combine them."""
    if issubclass(kind, SyntaxError):  # Python would show its line instead of what we say
        return UserCodeError
    try:
        made = type(UserCodeError.__name__, (UserCodeError, kind), {"__module__": __name__})
        made("")
    except TypeError:
        return UserCodeError
    return made


def _is_user_layer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Layer)


def _line_of(problem: Exception) -> str:
    """Return the line of the first file in the traceback that is neither fcaffe's nor Python's import system."""
    if isinstance(problem, SyntaxError):
        return f" ({problem.filename}, line {problem.lineno})"
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(problem.__traceback__)
        if not frame.filename.startswith((FCAFFE, importlib.__file__, "<frozen importlib"))
    ]
    if not frames:
        return ""
    file = frames[0][0]
    return f" ({file}, line {[line for name, line in frames if name == file][-1]})"
