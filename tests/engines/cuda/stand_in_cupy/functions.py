"""CuPy's functions of arrays, as far as they behave as NumPy's, and how they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import cublas, streams
from tests.engines.cuda.stand_in_cupy.arrays import (
    SCALARS,
    Array,
    assign,
    checked,
    empty_as,
    indexed_value,
    result,
    unwrap,
    view_or_copy,
)

UFUNCS = (
    "absolute add arccos arctan bitwise_and bitwise_or bitwise_xor ceil copysign cos divide equal exp expm1 floor "
    "floor_divide fmax fmin greater greater_equal invert isfinite isnan left_shift less less_equal log log1p log2 "
    "logaddexp logical_and maximum minimum multiply negative nextafter not_equal power reciprocal remainder "
    "right_shift rint sign sin sqrt square subtract tanh true_divide"
)
SCATTERS = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}
SCATTERED = ("int32", "float16", "float32", "float64", "uint32", "uint64")  # int64 CuPy has no atomics for

NEW = (  # give arrays of their own
    "all any argmax argmin clip concatenate count_nonzero cumsum diff dot einsum inner max mean min nan_to_num "
    "outer pad prod repeat roll searchsorted stack std sum take tile trace var vdot vstack hstack where allclose "
    "array_equal"
)
WAITING = (  # likewise, and the host must know something of the values, or Thrust synchronises
    "argpartition argsort argwhere bincount flatnonzero lexsort median nonzero sort unique"
)
VIEWS = (  # give views where NumPy does
    "atleast_1d broadcast_to expand_dims flip moveaxis ravel reshape squeeze swapaxes transpose"
)
TYPES = (
    "bool_ complex128 double dtype e finfo float16 float32 float64 half iinfo inf int8 int16 int32 int64 intp nan "
    "newaxis pi single uint8 uint16 uint32 uint64 promote_types broadcast_shapes ndindex floating number"
)


members: dict[str, Any] = {}  # of the module, by name


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    members[function.__name__] = function
    return function


class Ufunc:
    def __init__(self, name: str) -> None:
        self._ufunc = getattr(np, name)
        self.__name__ = name
        self.nin = self._ufunc.nin

    def __call__(self, *arguments: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind") -> Array:
        if len(arguments) > self.nin:
            *arguments, out = arguments  # type: ignore[assignment]
        given = [unwrap(each) for each in arguments]
        options = {"casting": casting} if dtype is None else {"casting": casting, "dtype": dtype}
        if out is None:
            return result(lambda: self._ufunc(*given, **options))
        target = _out(out)
        shape = np.broadcast_shapes(target.shape, *(np.shape(each) for each in given))
        if shape != target.shape:
            raise ValueError("Out shape is mismatched")
        streams.put(lambda: self._ufunc(*given, out=target, **options))
        return out

    def at(self, array: Array, indices: Any, values: Any = None) -> None:
        if self.__name__ not in SCATTERS:
            raise NotImplementedError(f"`cupy_{self.__name__}.at` is not supported yet")
        if array.dtype.name not in SCATTERED:
            raise TypeError("scatter_add only supports int32, float16, float32, float64, uint32, uint64, as data type")
        places = tuple(
            each._values if isinstance(each, Array) else each
            for each in (indices if isinstance(indices, tuple) else (indices,))
        )
        target, given = array._values, indexed_value(values, array.dtype)
        streams.put(lambda: self._ufunc.at(target, places, given))


class Matmul(Ufunc):
    def __call__(self, *arguments: Any, out: Any = None, **options: Any) -> Array:
        a, b = (unwrap(each) for each in arguments)
        cublas.refuse_capture()
        if out is None:
            return result(lambda: np.matmul(a, b, **options))
        target = _out(out)
        if np.matmul(a, b).shape != target.shape:
            raise ValueError("Output array has an invalid size")
        streams.put(lambda: np.copyto(target, np.matmul(a, b, **options), casting="same_kind"))
        return out


def _out(out: Any) -> np.ndarray:
    if isinstance(out, tuple):
        (out,) = out
    if not isinstance(out, Array):
        raise TypeError(f"Unsupported type {type(out)}")
    return out._values


def _deep(value: Any) -> Any:
    """Arguments as NumPy has them: arrays also in lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_deep(each) for each in value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return value._values if isinstance(value, Array) else value


def _function(name: str, waits: bool) -> Callable[..., Any]:
    function = getattr(np, name)

    def call(*arguments: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        if name in ("concatenate", "stack"):
            if not all(isinstance(each, Array) for each in arguments[0]):
                raise TypeError("Only cupy arrays can be concatenated")
        elif name not in ("where", "einsum") and not isinstance(arguments[0], (Array, *SCALARS)):
            raise TypeError(f"Unsupported type {type(arguments[0])}")
        if waits:
            streams.synchronise(name)
        if name in ("dot", "einsum", "tensordot"):
            cublas.refuse_capture()
        given, named = _deep(arguments), _deep_options(options)
        if out is not None:
            target = _out(out)
            streams.put(lambda: np.copyto(target, function(*given, **named), casting="same_kind"))
            return out
        if waits:
            found = function(*given, **named)
            if isinstance(found, tuple):
                return tuple(result(lambda each=each: each) for each in found)
        return result(lambda: function(*given, **named))

    call.__name__ = name
    return call


def _deep_options(options: dict[str, Any]) -> dict[str, Any]:
    return {key: _deep(value) for key, value in options.items()}


def _view_function(name: str) -> Callable[..., Array]:
    function = getattr(np, name)

    def call(array: Array, *arguments: Any, **options: Any) -> Array:
        return view_or_copy(array, lambda values: function(values, *arguments, **options))

    call.__name__ = name
    return call


members.update({name: Ufunc(name) for name in UFUNCS.split()})
members.update({name: _function(name, waits=False) for name in (*NEW.split(), "round")})
members.update({name: _function(name, waits=True) for name in WAITING.split()})
members.update({name: _view_function(name) for name in VIEWS.split()})
members.update({name: getattr(np, name) for name in TYPES.split()})
members.update(abs=members["absolute"], matmul=Matmul("matmul"))


@_public
def split(array: Array, *arguments: Any, **options: Any) -> list[Array]:
    return [array._view(part) for part in np.split(array._values, *arguments, **options)]


@_public
def empty(shape: Any, dtype: Any = float, order: str = "C") -> Array:
    return Array(shape, dtype, order=order)


@_public
def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Array:
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, Array) else np.asarray(fill_value).dtype
    made = empty(shape, dtype, order)
    made.fill(fill_value)
    return made


@_public
def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Array:
    return full(shape, 0, dtype, order)


@_public
def ones(shape: Any, dtype: Any = float, order: str = "C") -> Array:
    return full(shape, 1, dtype, order)


@_public
def empty_like(prototype: Array, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Array:
    dtype = prototype.dtype if dtype is None else dtype
    if shape is not None:
        return empty(shape, dtype)
    return empty_as(prototype._values, order, dtype)


@_public
def full_like(a: Array, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Array:  # fmt: skip  # noqa: E501
    made = empty_like(a, dtype, order, shape=shape)
    made.fill(fill_value)
    return made


@_public
def zeros_like(a: Array, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Array:
    return full_like(a, 0, dtype, order, shape=shape)


@_public
def arange(*arguments: Any, dtype: Any = None) -> Array:
    return result(lambda: np.arange(*arguments, dtype=dtype))


@_public
def array(
    obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", subok: Any = False, ndmin: int = 0,
    *, blocking: bool = False,
) -> Array:  # fmt: skip
    if isinstance(obj, Array):
        made = obj.astype(obj.dtype if dtype is None else dtype, order, copy=copy)
        return made if made.ndim >= ndmin else made.reshape((1,) * (ndmin - made.ndim) + made.shape)
    if isinstance(obj, (list, tuple)) and any(isinstance(each, Array) for each in obj):
        return members["stack"]([array(each, dtype) for each in obj])
    streams.upload("array")
    host = np.array(obj, dtype, ndmin=ndmin)
    checked(host.dtype)
    made = empty_as(host, order)
    made._values[...] = host
    return made


@_public
def asarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> Array:
    return array(a, dtype, copy=False, order=order or "K")


@_public
def ascontiguousarray(a: Any, dtype: Any = None) -> Array:
    made = asarray(a, dtype)
    return made if made.flags.c_contiguous and made.ndim else made.copy()


@_public
def copyto(dst: Array, src: Any, casting: str = "same_kind", where: Array | None = None) -> None:
    if isinstance(src, np.ndarray):
        if src.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        src = src.squeeze()[()]
    target, given = _out(dst), unwrap(src)
    if not isinstance(src, (bool, int, float, complex)) and not np.can_cast(given.dtype, target.dtype, casting):
        raise TypeError(f"Cannot cast {given.dtype} to {target.dtype} in {casting} casting mode")
    if where is None and isinstance(src, Array):
        assign(target, src)
        return
    mask = True if where is None else unwrap(where)
    streams.put(lambda: np.copyto(target, given, "unsafe", where=mask))


@_public
def take_along_axis(a: Array, indices: Array, axis: int | None) -> Array:
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if axis is not None and a.ndim != indices.ndim:
        raise ValueError("`indices` and `a` must have the same number of dimensions")
    values, places = unwrap(a), unwrap(indices)
    return result(lambda: np.take_along_axis(values, places % values.shape[axis or 0], axis))


@_public
def put_along_axis(arr: Array, indices: Array, values: Any, axis: int) -> None:
    target, places, given = _out(arr), unwrap(indices), indexed_value(values, arr.dtype)
    streams.put(lambda: np.put_along_axis(target, places % target.shape[axis], given.astype(target.dtype), axis))


def as_strided(x: Array, shape: Any = None, strides: Any = None) -> Array:
    return x._view(np.lib.stride_tricks.as_strided(x._values, shape, strides))
