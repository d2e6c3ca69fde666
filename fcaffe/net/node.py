"""Node: a layer, the blobs that it is connected to, and what backward has to do for it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from fcaffe.errors import LayerError, NetError
from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer
from fcaffe.net.recorded_forward import RecordedForward


@dataclass
class Node:
    """A layer at its position in a list of nodes that run in this order.

    A node of the graph stands for itself. A fused node of a program (see `fcaffe.net.rewrite`) stands for its
    `members`, nodes of the graph whose work its layer does.
    """

    index: int
    layer: Layer
    name: str
    bottoms: list[Blob]
    tops: list[Blob]
    bottom_ids: list[int]
    top_ids: list[int]
    bottom_need_backward: list[bool]
    needs_backward: bool = False
    has_loss: bool = False
    members: tuple[Node, ...] = ()
    versions: list[int] = field(default_factory=list)  # of the blobs, when the layer was reshaped last

    def reshape(self) -> None:
        """Let the layer take over the shapes of its bottoms, if they may have changed. A loss of another shape has new
        memory, perhaps, or more of it: there its gradient is written again."""
        shapes = [blob.shape for blob in self.tops] if self.has_loss else []
        self._reshape()
        if shapes != [blob.shape for blob in self.tops if self.has_loss]:
            self.layer.weigh_losses(self.tops)

    def _reshape(self) -> None:
        if self.layer.traits.reshapes_by_shape:
            if self.versions == [blob.version for blob in self.blobs]:
                return
            self.layer.reshape(self.bottoms, self.tops)
            self.versions = [blob.version for blob in self.blobs]
        else:
            self.layer.reshape(self.bottoms, self.tops)

    def forward(self) -> None:
        self.reshape()
        try:
            if self._recorded is None:
                self.layer.forward(self.bottoms, self.tops)
            else:
                self._recorded.run(self.versions)
        except LayerError:
            raise
        except (NetError, MemoryError) as problem:
            raise self.layer.named(problem) from problem

    def backward(self) -> None:
        try:
            self.layer.backward(self.tops, self.bottom_need_backward, self.bottoms)
        except LayerError:
            raise
        except MemoryError as problem:
            raise self.layer.named(problem) from problem

    @property
    def is_steady(self) -> bool:
        """Whether a pass leaves the shapes of its tops as they are while those of its bottoms stay."""
        traits = self.layer.traits
        return traits.reshapes_by_shape if self.bottoms else not traits.reads_host

    @property
    def in_place(self) -> bool:
        """Whether it overwrites its only bottom."""
        return len(self.tops) == 1 and self.bottoms == self.tops

    @property
    def layers(self) -> list[Layer]:
        """The layers of the graph whose work is done here."""
        return [member.layer for member in self.members] if self.members else [self.layer]

    @functools.cached_property
    def _recorded(self) -> RecordedForward | None:
        if not RecordedForward.suits(self.layer):
            return None
        parameters = [blob for layer in self.layers for blob in layer.blobs]
        return RecordedForward(self.layer, self.bottoms, self.tops, parameters)

    @functools.cached_property
    def blobs(self) -> list[Blob]:
        return [*self.bottoms, *self.tops]
