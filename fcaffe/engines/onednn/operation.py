"""A primitive as an operator of the engine: with the reorders of those arguments that it wants laid out otherwise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from ctypes import c_void_p

from fcaffe.engines.onednn import library as dnnl
from fcaffe.engines.onednn.library import Description, Layout, Library, Primitive

MOST = 4096  # operations that are kept


class Operation:
    """Called with the addresses of its inputs and outputs, in the order in which they were given here.

    An argument is used in place where the implementation takes it as it lies, and goes through the library's temporary
    memory where it does not: weights in blocks of the vector width, values rounded to bfloat16.
    """

    def __init__(
        self,
        library: Library,
        description: Description,
        inputs: dict[int, Layout],
        outputs: dict[int, Layout],
        opaque: Sequence[int] = (),
        chained: Mapping[int, Layout] | None = None,
    ) -> None:
        """`opaque` arguments, whose layout is the implementation's own affair, come after the outputs, and after those
        the arrays of steps of the `chain` in the attributes, by the steps' numbers."""
        self.library = library
        self.description = description
        kinds = (*inputs, *outputs, *opaque)
        operands = {dnnl.post_operand(step): layout.handle for step, layout in (chained or {}).items()}
        self.primitive = description.compile({kind: description.layout_of(kind) for kind in kinds} | operands)
        self._inputs = [self._reorder_in(kind, layout) for kind, layout in inputs.items()]
        self._outputs = list(outputs.items())
        self._reorders_out: dict[tuple[int, bool], Primitive | None] = {}

    def __call__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], add: bool = False) -> None:
        """Write the outputs, or with `add` add to what is there."""
        library = self.library
        places = list(inputs)
        for index, reorder in enumerate(self._inputs):
            if reorder is not None:
                places[index] = reorder(places[index])
        after = []
        for (kind, layout), place in zip(self._outputs, outputs, strict=False):
            reorder_out = self._reorder_out(kind, layout, add)
            if reorder_out is None:
                places.append(place)
            else:
                places.append(library.temporary(kind, self.description.size_of(kind)))
                after.append((reorder_out, places[-1], place))
        self.primitive(*places, *outputs[len(self._outputs) :])
        for back, temporary, place in after:
            back(temporary, place)

    def _reorder_in(self, kind: int, layout: Layout) -> ReorderIn | None:
        if self.description.wants(kind, layout):
            return None
        return ReorderIn(self.library, kind, layout, self.description)

    def _reorder_out(self, kind: int, layout: Layout, add: bool) -> Primitive | None:
        if (kind, add) not in self._reorders_out:
            needed = add or not self.description.wants(kind, layout)
            wanted = self.description.layout_of(kind)
            self._reorders_out[kind, add] = reorder(self.library, wanted, layout.handle, add) if needed else None
        return self._reorders_out[kind, add]


class Operations:
    """Base of the operators: operations are made once for each signature (shapes, strides, settings).

    Products are of numbers of type `math`, F32 or BF16; all sums, and whatever is stored, are float32.
    """

    library: Library
    math: int
    _operations: dict[Hashable, Operation]

    def operation(self, key: Hashable, build: Callable[[], Operation]) -> Operation:
        found = self._operations.get(key)
        if found is None:
            if len(self._operations) >= MOST:  # of nets that change their shapes all the time
                self._operations.clear()
                if self.library.kept:
                    self.library.kept.clear()  # what is in there belongs to them
            found = self._operations[key] = build()
        return found


class ReorderIn:
    """Brings an input into the layout that an implementation wants."""

    def __init__(self, library: Library, kind: int, layout: Layout, description: Description) -> None:
        self.library = library
        self.kind = kind
        self.size = description.size_of(kind)
        self.primitive = reorder(library, layout.handle, description.layout_of(kind))

    def __call__(self, place: int) -> int:
        """The address of the reordered input."""
        if self.kind == dnnl.WEIGHTS and self.library.kept is not None:
            kept, is_new = self.library.keep((place, id(self)), self.size)
            if is_new:
                self.primitive(place, kept)
            return kept
        temporary = self.library.temporary(self.kind, self.size)
        self.primitive(place, temporary)
        return temporary


def reorder(library: Library, source: c_void_p, target: c_void_p, add: bool = False) -> Primitive:
    """A copy from one layout and type to another, called with (source, target)."""
    description = library.describe(
        "reorder", source, library.engine, target, library.engine, library.attributes(add=add)
    )
    return description.compile({dnnl.SRC: source, dnnl.DST: target})
