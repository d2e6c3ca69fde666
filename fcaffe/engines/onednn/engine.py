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
from fcaffe.errors import UsageError


class OneDnnEngine(Convolution, Pooling, Normalization, InnerProduct, Elementwise, NumpyEngine):
    """`path` is that of libdnnl (see `find_onednn`); raises OneDnnError if it cannot be used.

    `math` 'bf16': convolutions and large inner products round their factors to bfloat16, and add up in float32. Raises
    UsageError where the processor cannot.
    """

    fuses_residuals = False

    def __init__(self, path: str, math: str = "fp32") -> None:
        super().__init__()
        self.library = Library(path)
        self.math = dnnl.BF16 if math == "bf16" else dnnl.F32
        if math == "bf16" and not self.library.has_bf16():
            raise UsageError("--math bf16 needs a processor with AVX-512 BF16 or AMX, and this one has neither")
        self.name = f"oneDNN {self.library.version}" + (" (bfloat16)" if math == "bf16" else "")
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

    @contextlib.contextmanager
    def other_weights(self) -> Iterator[None]:
        kept, self.library.kept = self.library.kept, None
        try:
            yield
        finally:
            self.library.kept = kept
