"""oneDNN's C API through ctypes: handles, descriptors of memory, and primitives. It knows nothing of layers.

Names and numbers are those of oneDNN 3's `dnnl.h` and `dnnl_types.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from ctypes import byref, c_char, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from fcaffe.engines.memory import aligned_zeros
from fcaffe.errors import FcaffeError
from fcaffe.threads import wanted_threads

MAX_AXES = 12
VERSION = 3

F32, BF16 = 3, 2  # dnnl_data_type_t
AVX512_CORE, AVX512_BF16 = 0x27, 0xE7  # dnnl_cpu_isa_t

FORWARD_TRAINING, FORWARD_INFERENCE, BACKWARD, BACKWARD_DATA = 64, 96, 128, 160  # dnnl_prop_kind_t

SRC, SRC_1, DST, WEIGHTS, BIAS = 1, 2, 17, 33, 41  # DNNL_ARG_...: which argument of a primitive
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
WORKSPACE, SCRATCHPAD = 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS, DIFF_SCALE, DIFF_SHIFT = 129, 145, 161, 169, 255, 256
MULTIPLE_SRC, POST_OPERATION = 1024, 32768
ADD, MULTIPLY, SUBTRACT = 0x1FFF0, 0x1FFF1, 0x1FFF5  # dnnl_binary_...

_QUERY_NAME, _QUERY_ARGUMENT = 8, 255  # dnnl_query_t

_STATUS = ["success", "out of memory", "invalid arguments", "unimplemented", "last implementation reached"]
_STATUS += ["runtime error", "not required"]
_CPU, _IN_ORDER, _SCRATCHPAD_OF_USER = 1, 1, 1


class OneDnnError(FcaffeError):
    """A call of oneDNN failed."""


class _Argument(ctypes.Structure):
    _fields_ = [("arg", c_int), ("memory", c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", ctypes.c_char_p)]


class Library:
    """An engine and a stream of oneDNN on this machine's CPU. Raises OneDnnError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        try:
            self._functions = ctypes.CDLL(path)
            version = self._pointer("version", _Version)
        except (OSError, AttributeError) as error:
            raise OneDnnError(f"{path} cannot be used as oneDNN: {error}; --engine numpy does without") from None
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != VERSION:
            raise OneDnnError(
                f"{path} is oneDNN {self.version}, and version {VERSION} is needed; --engine numpy does without"
            )
        self._few: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._keep_threads_within(wanted_threads())
        self.engine = self.create("engine_create", c_int(_CPU), c_size_t(0))
        self.stream = self.create("stream_create", self.engine, c_int(_IN_ORDER))
        self._execute = self._functions.dnnl_primitive_execute
        self._execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.execute = self._execute if self._few is contextlib.nullcontext else self._execute_with_few
        # Without giving Python's lock away, which would cost more than the call.
        self.set_data_handle = ctypes.PyDLL(path).dnnl_memory_set_data_handle
        self.set_data_handle.argtypes = [c_void_p, c_void_p]
        self._sgemm = self._functions.dnnl_sgemm
        matrix: list[Any] = [c_void_p, c_int64]
        self._sgemm.argtypes = [c_char, c_char, *[c_int64] * 3, c_float, *matrix, *matrix, c_float, *matrix]
        self._attributes: dict[tuple[Any, ...], c_void_p] = {}
        self._memory: dict[int, np.ndarray] = {}
        self.kept: dict[tuple[int, Any], np.ndarray] | None = None  # reordered weights, by address and reorder
        self.changing: Collection[int] = ()  # addresses of weights that are not to be kept

    def sgemm(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, add: bool = False) -> None:
        """c = a @ b, or with `add` so much more; a and b are C-contiguous float32 matrices or transposes of such."""
        (turn_a, step_a), (turn_b, step_b) = _as_blas(a), _as_blas(b)
        (rows, inner), columns, step_c = a.shape, b.shape[1], c.shape[1]
        factors = address(a), step_a, address(b), step_b, float(add)
        with self._few():
            status = self._sgemm(turn_a, turn_b, rows, columns, inner, 1.0, *factors, address(c), step_c)
        if status:
            raise OneDnnError(f"oneDNN {self.version}: dnnl_sgemm: {_STATUS[status]}")

    def has_bf16(self) -> bool:
        """Whether the processor multiplies bfloat16 numbers."""
        return self._functions.dnnl_get_effective_cpu_isa() & AVX512_BF16 == AVX512_BF16

    def has_avx512(self) -> bool:
        """Whether the processor has vectors of 16 float32 values, without which the library lacks some fast code."""
        return self._functions.dnnl_get_effective_cpu_isa() & AVX512_CORE == AVX512_CORE

    def call(self, name: str, *arguments: Any) -> None:
        """Call dnnl_`name`. Raises OneDnnError with the status' meaning."""
        with self._few():  # also where a primitive is made, which is then cut for so many threads
            status = getattr(self._functions, "dnnl_" + name)(*arguments)
        if status:
            meaning = _STATUS[status] if status < len(_STATUS) else str(status)
            raise OneDnnError(f"oneDNN {self.version}: dnnl_{name}: {meaning}")

    def create(self, name: str, *arguments: Any) -> c_void_p:
        """Call a function that returns a new object by its first argument."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made

    def destroy_with(self, owner: object, kind: str, handle: c_void_p) -> None:
        """Give a handle back when its owner goes, unless everything goes."""
        weakref.finalize(owner, self.call, f"{kind}_destroy", handle).atexit = False

    def layout(self, array: np.ndarray, data_type: int = F32) -> Layout:
        """The descriptor of an array as it lies in memory."""
        return Layout(self, array.shape, data_type, _strides(array))

    def channels_last(self, array: np.ndarray, data_type: int = F32) -> Layout:
        """The descriptor of an array of this shape that is dense and has its channels last (up to two axes: C order),
        however the array itself lies.

        Implementations for other orders than this one are incomplete in the library: what they lack falls to its
        reference code, which is a hundred times slower.
        """
        return self.with_last(array, min(1, array.ndim - 1), data_type)

    def with_last(self, array: np.ndarray, axis: int, data_type: int = F32) -> Layout:
        """The descriptor of a dense array of this shape whose axis `axis` comes last in memory."""
        order = (*(other for other in range(array.ndim) if other != axis), axis)
        return Layout(self, array.shape, data_type, _dense(array.shape, order))

    def common(self, *arrays: np.ndarray) -> Layout:
        """The descriptor of arrays of one shape as they lie if all lie alike, else `channels_last`."""
        first, *others = map(_strides, arrays)
        shape, axes = arrays[0].shape, range(arrays[0].ndim)
        if first in (_dense(shape, order) for order in _orders(axes)) and all(other == first for other in others):
            return Layout(self, shape, F32, first)
        return self.channels_last(arrays[0])

    def temporary(self, use: int, size: int) -> int:
        """The address of `size` bytes that hold until the same use is asked for again."""
        memory = self._memory.get(use)
        if memory is None or memory.nbytes < size:
            memory = self._memory[use] = aligned_zeros(np, -(-size // 4))
        return address(memory)

    def keep(self, key: tuple[int, Any], size: int) -> tuple[int, bool]:
        """The address of memory that is kept under this key for as long as `kept` is, and whether it is new."""
        assert self.kept is not None
        is_new = key not in self.kept
        if is_new:
            self.kept[key] = aligned_zeros(np, -(-size // 4))
        return address(self.kept[key]), is_new

    def attributes(self, relu: bool = False, add: bool = False) -> c_void_p:
        """Attributes of a primitive: with `add` it adds to what its output holds, with `relu` it applies ReLU then."""
        key = (relu, add)
        if key not in self._attributes:
            attributes = self.create("primitive_attr_create")
            self.call("primitive_attr_set_scratchpad_mode", attributes, c_int(_SCRATCHPAD_OF_USER))
            if relu or add:
                chain = self.create("post_ops_create")
                if add:
                    self.call("post_ops_append_sum", chain, c_float(1), c_int(0), c_int(0))
                if relu:
                    self.call("post_ops_append_eltwise", chain, c_int(RELU), c_float(0), c_float(0))
                self.call("primitive_attr_set_post_ops", attributes, chain)
                self.call("post_ops_destroy", chain)
            self._attributes[key] = attributes
        return self._attributes[key]

    def chain(self, steps: Sequence[tuple[int, Layout] | None]) -> c_void_p:
        """Attributes of a primitive that does these steps with its result: a binary operation with an array of this
        layout, which is the argument `post_operand` of the step's number, or None: adding what its output holds."""
        attributes, chain = self.create("primitive_attr_create"), self.create("post_ops_create")
        self.call("primitive_attr_set_scratchpad_mode", attributes, c_int(_SCRATCHPAD_OF_USER))
        for step in steps:
            if step is None:
                self.call("post_ops_append_sum", chain, c_float(1), c_int(0), c_int(0))
            else:
                self.call("post_ops_append_binary", chain, c_int(step[0]), step[1])
        self.call("primitive_attr_set_post_ops", attributes, chain)
        self.call("post_ops_destroy", chain)
        return attributes

    def describe(self, name: str, *arguments: Any) -> Description:
        """dnnl_`name`_primitive_desc_create with these arguments."""
        return Description(self, self.create(f"{name}_primitive_desc_create", *arguments))

    def _keep_threads_within(self, most: int) -> None:
        """Use no more threads than that, where OpenMP would.

        On the command line OpenMP itself was told. In a program that uses fcaffe as a library it may serve others as
        well, so it is told for the time of each call, and only if it has not been told by the user.
        """
        try:
            get, put = self._functions.omp_get_max_threads, self._functions.omp_set_num_threads
        except AttributeError:
            return  # a oneDNN of another threading
        if os.environ.get("OMP_NUM_THREADS") or get() <= most:
            return

        @contextlib.contextmanager
        def few() -> Iterator[None]:
            before = get()
            put(min(before, most))
            try:
                yield
            finally:
                put(before)

        self._few = few

    def _execute_with_few(self, *arguments: Any) -> int:
        with self._few():
            return int(self._execute(*arguments))

    def _pointer(self, name: str, kind: Any) -> Any:
        function = getattr(self._functions, "dnnl_" + name)
        function.restype = ctypes.POINTER(kind)
        return function().contents


RELU, RELU_BY_OUTPUT = 0x20, 0x100  # dnnl_alg_kind_t


class Layout:
    """dnnl_memory_desc_t: shape, type and strides (in elements); strides None: whatever the primitive likes best."""

    def __init__(
        self, library: Library, shape: Sequence[int], data_type: int = F32, strides: Sequence[int] | None = None
    ) -> None:
        self.library = library
        count = c_int(len(shape))
        if strides is None:
            any_format = c_int(1)
            self.handle = library.create(
                "memory_desc_create_with_tag", count, dims(shape), c_int(data_type), any_format
            )
        else:
            self.handle = library.create(
                "memory_desc_create_with_strides", count, dims(shape), c_int(data_type), dims(strides)
            )
        self._as_parameter_ = self.handle
        library.destroy_with(self, "memory_desc", self.handle)


class Description:
    """dnnl_primitive_desc_t: a chosen implementation of an operation for certain shapes."""

    def __init__(self, library: Library, handle: c_void_p) -> None:
        self.library = library
        self.handle = self._as_parameter_ = handle
        library.destroy_with(self, "primitive_desc", handle)

    def layout_of(self, argument: int) -> c_void_p:
        """The descriptor that the implementation wants of an argument; it lives as long as this."""
        function = self.library._functions.dnnl_primitive_desc_query_md
        function.restype = c_void_p
        return c_void_p(function(self.handle, c_int(_QUERY_ARGUMENT), c_int(argument)))

    def size_of(self, argument: int) -> int:
        """Bytes of an argument; 0 if there is no such."""
        function = self.library._functions.dnnl_memory_desc_get_size
        function.restype = c_size_t
        layout = self.layout_of(argument)
        return function(layout) if layout else 0

    @property
    def name(self) -> str:
        """The implementation's."""
        name = ctypes.c_char_p()
        self.library.call("primitive_desc_query", self.handle, c_int(_QUERY_NAME), c_int(0), byref(name))
        return (name.value or b"").decode()

    def wants(self, argument: int, layout: Layout) -> bool:
        """Whether the implementation takes the argument as it lies."""
        return bool(self.library._functions.dnnl_memory_desc_equal(self.layout_of(argument), layout.handle))

    def compile(self, arguments: Mapping[int, c_void_p]) -> Primitive:
        """A primitive whose calls take the addresses of these arguments (with their descriptors) in this order."""
        return Primitive(self, arguments)


class Primitive:
    """A compiled operation together with the memory objects of its arguments; called with their addresses."""

    def __init__(self, description: Description, arguments: Mapping[int, c_void_p]) -> None:
        library = description.library
        self.library = library
        self.description = description
        self.handle = library.create("primitive_create", description.handle)
        self.scratch_size = description.size_of(SCRATCHPAD)
        if self.scratch_size:
            arguments = {**arguments, SCRATCHPAD: description.layout_of(SCRATCHPAD)}
        self._memories = [
            library.create("memory_create", layout, library.engine, c_void_p(0)) for layout in arguments.values()
        ]
        self._addresses = [0] * len(self._memories)
        self._arguments = (_Argument * len(arguments))(
            *(_Argument(kind, memory.value) for kind, memory in zip(arguments, self._memories, strict=True))
        )
        self._pointer = ctypes.addressof(self._arguments)
        self._count = len(arguments)
        library.destroy_with(self, "primitive", self.handle)
        for memory in self._memories:
            library.destroy_with(self, "memory", memory)

    def __call__(self, *addresses: int) -> None:
        if self.scratch_size:
            addresses = (*addresses, self.library.temporary(SCRATCHPAD, self.scratch_size))
        if list(addresses) != self._addresses:
            for memory, place in zip(self._memories, addresses, strict=True):
                self.library.set_data_handle(memory, place)
            self._addresses = list(addresses)
        status = self.library.execute(self.handle, self.library.stream, self._count, self._pointer)
        if status:
            raise OneDnnError(f"oneDNN {self.library.version}: {self.description.name} failed (status {status})")


def post_operand(step: int) -> int:
    """Which argument of a primitive the array of a step of its `chain` is."""
    return POST_OPERATION * (step + 1) | SRC_1


def _as_blas(matrix: np.ndarray) -> tuple[bytes, int]:
    """Whether it is a transpose (T) or not (N), and how far apart the rows of what is stored lie."""
    return (b"N", matrix.shape[1]) if matrix.flags.c_contiguous else (b"T", matrix.shape[0])


def dims(numbers: Sequence[int]) -> Any:
    """As a dnnl_dims_t."""
    return (c_int64 * MAX_AXES)(*numbers)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _strides(array: np.ndarray) -> tuple[int, ...]:
    """In elements. An axis of one element may have any; oneDNN wants those of its formats."""
    steps = tuple(step // array.itemsize for step in array.strides)
    for order in _orders(range(array.ndim)):
        dense = _dense(array.shape, order)
        if all(length == 1 or a == b for length, a, b in zip(array.shape, steps, dense, strict=True)):
            return dense
    return steps


def _orders(axes: range) -> tuple[tuple[int, ...], ...]:
    """Those in which the axes of blobs lie in memory: with the channels last, and C order."""
    return ((0, *axes[2:], 1), tuple(axes)) if len(axes) > 1 else (tuple(axes),)


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a dense array whose axes lie in this order in memory."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)
