"""The CPU engine on oneDNN: NumPy arrays, oneDNN's primitives on all cores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from fcaffe.engines.engine import Kept
from fcaffe.engines.memory import address
from fcaffe.engines.numpy_engine import NumpyEngine
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.convolution_gradients import ConvolutionGradients
from fcaffe.engines.onednn.elementwise import Elementwise
from fcaffe.engines.onednn.folded_convolution import FoldedConvolution
from fcaffe.engines.onednn.inner_product import InnerProduct
from fcaffe.engines.onednn.library import Library
from fcaffe.engines.onednn.normalization import Normalization
from fcaffe.engines.onednn.pooling import Pooling
from fcaffe.engines.onednn.tape import Tape
from fcaffe.engines.onednn.update import Update


class OneDnnEngine(
    FoldedConvolution, ConvolutionGradients, Pooling, Normalization, InnerProduct, Elementwise, Update, NumpyEngine
):
    """`path` is that of libdnnl (see `find_onednn`); raises OneDnnError if it cannot be used."""

    records = True
    splits_products = True
    math = dnnl.F32

    def __init__(self, path: str) -> None:
        super().__init__()
        self.library = Library(path)
        self.name = f"oneDNN {self.library.version}"
        self._operations = {}
        self._can_add = {}
        self._normals = {}
        self._updates = {}

    @contextlib.contextmanager
    def fixed_weights(self, made: Kept | None = None, changing: Collection[int] = ()) -> Iterator[None]:
        """While the weights do not change they are brought into oneDNN's layouts once only."""
        with super().fixed_weights(made, changing):
            library = self.library
            before = library.kept, library.changing
            library.kept, library.changing = self._kept, self._changing
            try:
                yield
            finally:
                library.kept, library.changing = before

    def recorded(self, work: Callable[[], None], arrays: Sequence[Any]) -> Callable[[], None] | None:
        """None too where a primitive has worked on memory of NumPy's that will be gone, such as a copy in C order."""
        library = self.library
        library.tape = tape = Tape(library)
        try:
            work()
        finally:
            library.tape = None
        places = {address(array) for array in arrays}
        kept: list[Any] = []
        for (sources, _), made in (self._kept or {}).items():
            if not places.isdisjoint(sources):
                kept += made if isinstance(made, tuple) else [made]
        if self.fixed is self._kept:  # it outlives this body, in which what is kept may be dropped
            tape.hold(kept)
        return tape if tape.works_on([*arrays, *library.temporaries(), *kept]) else None

    def joined(self, recordings: Sequence[Callable[[], None]]) -> Callable[[], None]:
        whole = Tape(self.library)
        for tape in recordings:
            assert isinstance(tape, Tape)
            whole.append(tape)
        return whole

    @contextlib.contextmanager
    def other_weights(self) -> Iterator[None]:
        with super().other_weights():
            kept, self.library.kept = self.library.kept, None
            try:
                yield
            finally:
                self.library.kept = kept
