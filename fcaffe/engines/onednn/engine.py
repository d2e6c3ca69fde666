"""The CPU engine on oneDNN: NumPy arrays, oneDNN's primitives on all cores."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from fcaffe.engines.engine import NumpyEngine
from fcaffe.engines.onednn import dnnl
from fcaffe.engines.onednn.convolution import Convolution
from fcaffe.engines.onednn.elementwise import Elementwise
from fcaffe.engines.onednn.inner_product import InnerProduct
from fcaffe.engines.onednn.library import Library
from fcaffe.engines.onednn.normalization import Normalization
from fcaffe.engines.onednn.pooling import Pooling


class OneDnnEngine(Convolution, Pooling, Normalization, InnerProduct, Elementwise, NumpyEngine):
    """`path` is that of libdnnl (see `find_onednn`); raises OneDnnError if it cannot be used."""

    fuses_residuals = False
    math = dnnl.F32

    def __init__(self, path: str) -> None:
        super().__init__()
        self.library = Library(path)
        self.name = f"oneDNN {self.library.version}"
        self._operations = {}
        self._normals = {}

    @contextlib.contextmanager
    def fixed_weights(
        self, made: dict[tuple[int, Any], Any] | None = None, changing: Collection[int] = ()
    ) -> Iterator[None]:
        """While the weights do not change they are brought into oneDNN's layouts once only."""
        if self.library.kept is not None:
            yield
            return
        self.library.kept = {} if made is None else made
        self.library.changing = changing
        try:
            yield
        finally:
            self.library.kept = None
