"""A blob as user code sees it."""

from __future__ import annotations

from fcaffe.net import blob as core
from fcaffe.net.blob import Array


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
