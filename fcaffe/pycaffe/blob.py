"""Blobs as user code sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fcaffe.errors import CallError
from fcaffe.net import blob as core
from fcaffe.net.layer import Layer
from fcaffe.net.script.host_arrays import HostViews, host_views


class Blob:
    """A live view of a net's blob.

    `data` and `diff` are in C order: `b.data.ravel()[:] = x` and `b.data.reshape(n, -1)[:] = x` write the blob, as in
    Caffe. An array stays live until the blob grows: what is written into it counts in the next pass, and after each
    pass it has the blob's values. In GPU mode arrays are copies in host memory, which the net takes over when it next
    works; ask for them anew after it has, as in Caffe.
    """

    def __init__(self, blob: core.Blob, views: HostViews) -> None:
        self._blob = blob
        self._views = views

    @property
    def data(self) -> np.ndarray:
        return self._views.data(self._blob)

    @property
    def diff(self) -> np.ndarray:
        return self._views.diff(self._blob)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._blob.shape

    @property
    def count(self) -> int:
        return self._blob.count

    @property
    def num(self) -> int:
        return self._blob.num

    @property
    def channels(self) -> int:
        return self._blob.channels

    @property
    def height(self) -> int:
        return self._blob.height

    @property
    def width(self) -> int:
        return self._blob.width

    @property
    def _gpu_data_ptr(self) -> int:
        """The address of the values on the GPU, in C order, for libraries that take it. AttributeError on the CPU."""
        return self._views.device_address(self._blob, self._blob.data_storage)

    @property
    def _gpu_diff_ptr(self) -> int:
        return self._views.device_address(self._blob, self._blob.diff_storage)

    def reshape(self, *shape: int, **named: Any) -> None:
        if named:
            raise CallError(f"Blob.reshape takes no keywords, but the dimensions: {', '.join(named)}")
        self._views.reshape(self._blob, shape)


class BlobVec(Sequence[Blob]):
    """The parameter blobs of a layer, as they are now."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._views = host_views(layer.engine)

    def add_blob(self, *shape: int, **named: Any) -> None:
        """Append a parameter of this shape, zeroed. For the `setup` of a Python layer."""
        if named:
            raise CallError(f"BlobVec.add_blob takes no keywords, but the dimensions: {', '.join(named)}")
        self._layer.add_blob(*shape)

    def __len__(self) -> int:
        return len(self._layer.blobs)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [Blob(blob, self._views) for blob in self._layer.blobs[index]]
        return Blob(self._layer.blobs[index], self._views)

    def __iter__(self) -> Iterator[Blob]:
        return iter(self[:])
