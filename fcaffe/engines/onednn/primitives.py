"""oneDNN's objects: descriptors of memory, descriptions of operations, and compiled primitives."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from typing import Any

from fcaffe.engines.onednn.calls import Calls, OneDnnError
from fcaffe.engines.onednn.dnnl import F32, MAX_AXES, SCRATCHPAD

ANY_FORMAT = 1  # dnnl_format_tag_t
QUERY_NAME, QUERY_ARGUMENT = 8, 255  # dnnl_query_t


class Layout:
    """dnnl_memory_desc_t: shape, type and strides (in elements); without them the primitive chooses."""

    def __init__(
        self, library: Calls, shape: Sequence[int], data_type: int = F32, strides: Sequence[int] | None = None
    ) -> None:
        self.library = library
        by, how = ("tag", c_int(ANY_FORMAT)) if strides is None else ("strides", dims(strides))
        arguments = c_int(len(shape)), dims(shape), c_int(data_type), how
        self.handle = library.create(f"memory_desc_create_with_{by}", *arguments)
        self._as_parameter_ = self.handle
        library.destroy_with(self, "memory_desc", self.handle)


Memory = Layout | c_void_p  # of an array, or of what an implementation wants


class Description:
    """dnnl_primitive_desc_t: a chosen implementation of an operation for certain shapes."""

    def __init__(self, library: Calls, handle: c_void_p) -> None:
        self.library = library
        self.handle = self._as_parameter_ = handle
        library.destroy_with(self, "primitive_desc", handle)

    def layout_of(self, argument: int) -> c_void_p:
        """The descriptor that the implementation requires for an argument; it lives as long as this object."""
        function = self.library.functions.dnnl_primitive_desc_query_md
        function.restype = c_void_p
        return c_void_p(function(self.handle, c_int(QUERY_ARGUMENT), c_int(argument)))

    def size_of(self, argument: int) -> int:
        """Bytes of an argument; 0 if the operation does not have it."""
        function = self.library.functions.dnnl_memory_desc_get_size
        function.restype = c_size_t
        layout = self.layout_of(argument)
        return function(layout) if layout else 0

    @property
    def name(self) -> str:
        """Name of the implementation."""
        name = ctypes.c_char_p()
        self.library.call("primitive_desc_query", self.handle, c_int(QUERY_NAME), c_int(0), byref(name))
        return (name.value or b"").decode()

    def take_next(self) -> bool:
        """Take the library's next choice of an implementation instead of this one; False if it has no other."""
        return not self.library.functions.dnnl_primitive_desc_next_impl(self.handle)

    def wants(self, argument: int, layout: Layout) -> bool:
        """Whether the implementation accepts the argument in this layout."""
        return bool(self.library.functions.dnnl_memory_desc_equal(self.layout_of(argument), layout.handle))


class Primitive:
    """A compiled operation with the memory objects of its arguments.

    `arguments` has the descriptors. A call takes the addresses in the same order.
    """

    def __init__(self, description: Description, arguments: Mapping[int, Memory]) -> None:
        library = description.library
        self.library = library
        self.description = description
        self.by_one = library.threads.for_one  # compiled for one thread, so one thread runs it
        self.handle = library.create("primitive_create", description.handle)
        self.scratch_size = description.size_of(SCRATCHPAD)
        if self.scratch_size:
            arguments = {**arguments, SCRATCHPAD: description.layout_of(SCRATCHPAD)}
        self._layouts = arguments
        self._memories = [
            library.create("memory_create", layout, library.engine, c_void_p(0)) for layout in arguments.values()
        ]
        self._addresses: tuple[int, ...] = ()
        self._arguments = (_Argument * len(arguments))(
            *(_Argument(kind, memory.value) for kind, memory in zip(arguments, self._memories, strict=True))
        )
        self._pointer = ctypes.addressof(self._arguments)
        self._count = len(arguments)
        library.destroy_with(self, "primitive", self.handle)
        for memory in self._memories:
            library.destroy_with(self, "memory", memory)

    def __call__(self, *addresses: int) -> None:
        library = self.library
        if library.tape is not None:
            twin = self._twin()
            twin._point_to(addresses)
            library.tape.add(twin.execute, self.by_one, addresses)
        self._point_to(addresses)
        status = library.threads.run_with_one(self.execute) if self.by_one else self.execute()
        if status:
            raise OneDnnError(f"oneDNN {library.version}: {self.description.name} failed (status {status})")

    def execute(self) -> int:
        """Run once more at the same addresses; returns a status."""
        return self.library.execute(self.handle, self.library.stream, self._count, self._pointer)

    def _point_to(self, addresses: tuple[int, ...]) -> None:
        if self.scratch_size:
            addresses += (self.library.temporary(SCRATCHPAD, self.scratch_size),)
        if addresses != self._addresses:
            for memory, address in zip(self._memories, addresses, strict=True):
                self.library.set_data_handle(memory, address)
            self._addresses = addresses

    def _twin(self) -> Primitive:
        """A copy for a tape, whose addresses are constant. Setting addresses takes as long as a small call."""
        with self.library.threads.one(self.by_one):
            return Primitive(self.description, self._layouts)


class _Argument(ctypes.Structure):
    _fields_ = [("arg", c_int), ("memory", c_void_p)]


def dims(numbers: Sequence[int]) -> Any:
    """As a dnnl_dims_t."""
    return (c_int64 * MAX_AXES)(*numbers)
