"""CuPy's array: no NumPy array, and never one unless it is asked to be.

Differences from NumPy that matter: results of arithmetic are in C order whatever the operands' strides, reductions and
items are 0-d arrays, out-of-range integer indices wrap around, NumPy arrays are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.engines.cuda.stand_in_cupy import memory, streams
from tests.engines.cuda.stand_in_cupy.indexing import places, wrapped

SCALARS = (bool, int, float, complex, np.generic)


class Flags:
    def __init__(self, flags: Any, owndata: bool) -> None:
        self.c_contiguous, self.f_contiguous, self.owndata = flags.c_contiguous, flags.f_contiguous, owndata
        self.forc, self.fnc = flags.forc, flags.fnc


class Array:
    """`_values` is a NumPy view of the device's memory, which `data` keeps."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> None:
        shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))
        dtype = checked(np.dtype(dtype))
        if memptr is None:
            fresh = _fresh(shape, dtype, order)
            self._values, self._memory, self.base = fresh._values, fresh._memory, None
            return
        extent = _extent(shape, strides, dtype)
        flat = memory.as_numpy(memptr.ptr, np.uint8, extent)
        self._values = np.ndarray(shape, dtype, flat if extent else None, 0, strides, order)
        self._memory, self.base = memptr.mem, None

    @classmethod
    def _of(cls, values: np.ndarray, mem: Any, base: Array | None = None) -> Array:
        made = cls.__new__(cls)
        made._values, made._memory, made.base = values, mem, base
        return made

    def _view(self, values: np.ndarray) -> Array:
        return Array._of(values, self._memory, self if self.base is None else self.base)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        address = self._values.__array_interface__["data"][0]
        return memory.MemoryPointer(self._memory, address - self._memory.ptr if self.size else 0)

    @property
    def flags(self) -> Flags:
        return Flags(self._values.flags, self.base is None)

    @property
    def T(self) -> Array:  # noqa: N802
        return self.transpose()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:  # which mpi4py reads
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "strides": None if self.flags.c_contiguous else self.strides,
            "version": 3,
            "stream": 1,
        }

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Array]:
        return (self[index] for index in range(len(self)))

    # --- to and from the host -----------------------------------------------------------------------------------------

    def get(
        self, stream: Any = None, order: str = "C", out: np.ndarray | None = None, blocking: bool = True
    ) -> np.ndarray:
        if out is None:
            out = np.empty(self.shape, self.dtype, order)  # type: ignore[call-overload]
        elif not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        elif out.dtype != self.dtype:
            raise TypeError(f"{self.dtype} array cannot be obtained from {out.dtype} array")
        elif out.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}")
        elif not (out.flags.c_contiguous or out.flags.f_contiguous):
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        if not (self.flags.c_contiguous if order == "C" else self.flags.f_contiguous):
            with stream or streams.current():  # where CuPy makes a copy
                pass
        if blocking:
            streams.synchronise("get", stream)
            out[...] = self._values
        else:
            streams.copy_to_host(self._values, out, stream)
        return out

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        if stream is None:
            streams.upload("set")
            values, given = self._values, arr.copy()
            streams.put(lambda: np.copyto(values, given))
        else:
            streams.copy_from_host(arr, self._values, stream)

    def _host(self, what: str) -> np.ndarray:
        streams.synchronise(what)
        return self._values

    def tolist(self) -> Any:
        return self._host("tolist()").tolist()

    def __float__(self) -> float:
        return float(self._host("float()").item())

    def __int__(self) -> int:
        return int(self._host("int()").item())

    def __bool__(self) -> bool:
        return bool(self._host("bool()"))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from tests.engines.cuda.stand_in_cupy import functions

        own = functions.members.get(ufunc.__name__)
        if own is None or not hasattr(own, method):
            return NotImplemented
        out = options.pop("out", None)
        if out is not None:
            options["out"] = out[0]
        return getattr(own, method)(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        from tests.engines.cuda.stand_in_cupy import functions

        own = functions.members.get(function.__name__)
        return NotImplemented if own is None else own(*arguments, **options)

    # --- parts --------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Array:
        place, how = places(key)
        if how == "view":
            return self._view(self._values[place])
        if how == "mask":
            streams.synchronise("boolean index")
        values = self._values
        return result(lambda: values[wrapped(place, values.shape)])

    def __setitem__(self, key: Any, value: Any) -> None:
        place, how = places(key)
        values = self._values
        if how == "view":
            if isinstance(value, Array):
                assign(values[place], value)
            else:
                self._view(values[place]).fill(value)
            return
        if how == "mask":
            streams.synchronise("assignment by a boolean index")
        given = indexed_value(value, self.dtype)
        streams.put(lambda: values.__setitem__(wrapped(place, values.shape), given))

    def fill(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            if value.shape:
                raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
            value = value.item()
        if isinstance(value, Array):
            if value.ndim:
                raise ValueError("fill takes a scalar")
            assign(self._values, value)
            return
        if not isinstance(value, SCALARS):
            raise TypeError(f"Unsupported type {type(value)}")
        values = self._values
        streams.put(lambda: np.copyto(values, np.asarray(value).astype(values.dtype)))

    # --- other shapes and types ---------------------------------------------------------------------------------------

    def reshape(self, *shape: Any, order: str = "C") -> Array:
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
        return view_or_copy(self, lambda values: values.reshape(shape, order=order))

    def transpose(self, *axes: Any) -> Array:
        return self._view(self._values.transpose(*axes))

    def view(self, dtype: Any = None) -> Array:
        return self._view(self._values.view() if dtype is None else self._values.view(checked(np.dtype(dtype))))

    def copy(self, order: str = "C") -> Array:
        values = self._values
        return result(lambda: values, order)

    __copy__ = copy

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: Any = None, copy: bool = True
    ) -> Array:
        dtype = checked(np.dtype(dtype))
        if not copy and dtype == self.dtype:
            return self
        values = self._values
        return result(lambda: values.astype(dtype, casting=casting), order)  # type: ignore[arg-type]


for _name in ("dtype", "shape", "ndim", "size", "strides", "nbytes", "itemsize"):
    setattr(Array, _name, property(lambda self, name=_name: getattr(self._values, name)))


def checked(dtype: np.dtype) -> np.dtype:
    """The type, if there are arrays of it on a device."""
    if dtype.kind in "OSUMm":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def _extent(shape: tuple[int, ...], strides: Any, dtype: np.dtype) -> int:
    if 0 in shape:
        return 0
    if strides is None:
        return int(np.prod(shape)) * dtype.itemsize
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize


def _fresh(shape: tuple[int, ...], dtype: np.dtype, order: str = "C") -> Array:
    """Rubbish."""
    count = int(np.prod(shape))
    pointer = memory.alloc(count * dtype.itemsize)
    if not count:
        return Array._of(np.empty(shape, dtype), pointer.mem)
    flat = memory.as_numpy(pointer.ptr, dtype, count)
    return Array._of(flat.reshape(shape, order="F" if order == "F" else "C"), pointer.mem)


def empty_as(values: np.ndarray, order: str = "C", dtype: Any = None) -> Array:
    """Rubbish of the shape and type of the values; with order "K" or "A" in their order of axes too."""
    dtype = values.dtype if dtype is None else np.dtype(dtype)
    if order in "KA" and not values.flags.c_contiguous and values.size:
        axes = sorted(range(values.ndim), key=lambda axis: -abs(values.strides[axis]))
        made = _fresh(tuple(values.shape[axis] for axis in axes), dtype)
        return Array._of(made._values.transpose(np.argsort(axes)), made._memory)
    return _fresh(values.shape, dtype, order)


def result(compute: Callable[[], Any], order: str = "C") -> Array:
    """What `compute` gives, in device memory of its own. In a capture it is recorded, and there is rubbish so far."""
    with np.errstate(all="ignore"):
        now = np.asarray(compute())
    checked(now.dtype)
    made = empty_as(now, order)
    values = made._values
    if streams.capturing() or streams.puts_off():
        streams.put(lambda: np.copyto(values, compute(), casting="unsafe"))
    else:
        values[...] = now
    return made


def assign(target: np.ndarray, value: Array) -> None:
    """target[...] = value."""
    given = value._values
    np.broadcast_shapes(target.shape, given.shape)
    streams.put(lambda: np.copyto(target, given.reshape(given.shape[max(0, given.ndim - target.ndim) :]), "unsafe"))


def indexed_value(value: Any, dtype: np.dtype) -> Any:
    """What is assigned by an index array: CuPy makes a device array of anything else, which is a copy from the host."""
    if isinstance(value, Array):
        return value._values
    streams.upload("assignment of a host value by an index array")
    if not isinstance(value, (*SCALARS, np.ndarray, list, tuple)):
        raise TypeError(f"Unsupported type {type(value)}")
    return np.asarray(value).astype(dtype)


def unwrap(value: Any) -> Any:
    """An operand as NumPy has it. TypeError for what CuPy does not take."""
    if isinstance(value, Array):
        return value._values
    if isinstance(value, SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def view_or_copy(array: Array, function: Callable[[np.ndarray], np.ndarray]) -> Array:
    values = array._values
    seen = function(values)
    if not values.size or np.may_share_memory(seen, values):
        return array._view(seen)
    return result(lambda: function(values))
