"""The CPU engine on oneDNN: NumPy arrays, oneDNN's primitives on all cores."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from fcaffe.engines.base import Made
from fcaffe.engines.numpy_engine import NumpyEngine
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.convolution import Convolution
from fcaffe.engines.onednn.elementwise import Elementwise
from fcaffe.engines.onednn.inner_product import InnerProduct
from fcaffe.engines.onednn.library import Library
from fcaffe.engines.onednn.normalization import Normalization
from fcaffe.engines.onednn.pooling import Pooling
from fcaffe.engines.onednn.tape import Tape


class OneDnnEngine(Convolution, Pooling, Normalization, InnerProduct, Elementwise, NumpyEngine):
    """`path` is that of libdnnl (see `find_onednn`); raises OneDnnError if it cannot be used."""

    records = True
    math = dnnl.F32

    def __init__(self, path: str) -> None:
        super().__init__()
        self._arguments = (path,)
        self.library = Library(path)
        self.name = f"oneDNN {self.library.version}"
        self._operations = {}
        self._passes = {}

    def of_weights(self, operator: Hashable, derive: Callable[[], Made], source: Any = None) -> Made | None:
        """A tape does not record the derivation, and keeps its result for as long as it repeats calls with it."""
        library, tape = self.library, self.library.tape
        library.tape = None
        try:
            found = super().of_weights(operator, derive, source)
        finally:
            library.tape = tape
        if tape is not None and found is not None:
            tape.held += found if isinstance(found, tuple) else (found,)
        return found

    def recorded(self, work: Callable[[], None], arrays: Sequence[Any]) -> Tape | None:
        """None too where a primitive has worked on memory of NumPy's that will be gone, such as a copy in C order."""
        library = self.library
        library.tape = tape = Tape(library)
        try:
            work()
        finally:
            library.tape = None
        return tape if tape.works_on(arrays) else None
