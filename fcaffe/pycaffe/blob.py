"""Blobs as user code sees them."""

from __future__ import annotations

from collections.abc import Iterator

from fcaffe.net import blob as core
from fcaffe.net.blob import Array
from fcaffe.net.layer import Layer


class Blob:
    """A live view of a net's blob.

    Once its `data` or `diff` has been handed out, the blob is C-contiguous for good: `b.data.ravel()[:] = x` and
    `b.data.reshape(n, -1)[:] = x` write the blob, as in Caffe.
    """

    def __init__(self, blob: core.Blob) -> None:
        self._blob = blob

    @property
    def data(self) -> Array:
        self._blob.make_contiguous()
        return self._blob.data

    @property
    def diff(self) -> Array:
        self._blob.make_contiguous()
        return self._blob.diff

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

    def reshape(self, *shape: int) -> None:
        self._blob.reshape(*shape)


class BlobVec:
    """The parameter blobs of a layer, as they are now."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def add_blob(self, *shape: int) -> None:
        """Append a parameter of this shape, zeroed. For the `setup` of a Python layer."""
        self._layer.add_blob(*shape)

    def __len__(self) -> int:
        return len(self._layer.blobs)

    def __getitem__(self, index: int) -> Blob:
        return Blob(self._layer.blobs[index])

    def __iter__(self) -> Iterator[Blob]:
        return (Blob(blob) for blob in self._layer.blobs)
