"""pycaffe's Layer: the base class of a user's Python layers, and the interface of every layer in a net."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from fcaffe.net.layer import Layer as CoreLayer
from fcaffe.pycaffe.blob import Blob, BlobVec


class Phase(IntEnum):
    """The phase of a user's layer: the number as in Caffe, whose `str` is the name as in Fast R-CNN's fork."""

    TRAIN = 0
    TEST = 1

    def __str__(self) -> str:
        return self.name


class Layer:
    """Base class for layers of `type: "Python"`. A subclass defines some of these methods:

    - `setup(self, bottom, top)`: check `self.param_str` and the bottoms, make parameters; once;
    - `reshape(self, bottom, top)`: `top[i].reshape(...)` from the shapes of the bottoms; before every forward pass;
    - `forward(self, bottom, top)`: write `top[i].data[...]`;
    - `backward(self, top, propagate_down, bottom)`: write `bottom[i].diff[...]` where `propagate_down[i]`, and add to
      `self.blobs[i].diff`.

    A class with state from one pass to the next, such as a running mean, also defines

    - `snapshot_state(self)`: return a dict of arrays by names, which goes into snapshots;
    - `restore_state(self, state)`: take such a dict over when a training goes on from a snapshot.

    bottom and top are lists of live blobs; take `.data` and `.diff` anew in each call, since memory moves when a blob
    grows and when a solver takes over the parameters.
    """

    by_sample = False  # sample i of each top depends only on sample i of the bottoms, so workers may split the batch

    _layer: CoreLayer
    param_str: str
    phase: Phase

    def __init__(self, param: Any) -> None:
        """As in Caffe, from a LayerParameter. param_str, phase and blobs are there from `setup` on."""

    @classmethod
    def _of(cls, layer: CoreLayer) -> Layer:
        """Return the interface of a built-in layer."""
        made = cls.__new__(cls)
        made._bind(layer)
        return made

    def _bind(self, layer: CoreLayer) -> None:
        self._layer = layer
        self.blobs = BlobVec(layer)

    @property
    def type(self) -> str:
        return self._layer.type

    @property
    def param_str_(self) -> str:
        """Older Caffe's name of param_str."""
        return self.param_str

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        raise self._missing("reshape(self, bottom, top)")

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        raise self._missing("forward(self, bottom, top)")

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        raise self._missing("backward(self, top, propagate_down, bottom)")

    def snapshot_state(self) -> dict[str, Any]:
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        pass

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"the class does not define {method}")


class UserLayer(CoreLayer):
    """A layer of a net that calls an instance of a user's class."""

    user_layer: Layer
