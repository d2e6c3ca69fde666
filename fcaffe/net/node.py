"""Node: a layer, the blobs that it is connected to, and what backward has to do for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from fcaffe.errors import LayerError, NetError
from fcaffe.net.blob import Blob
from fcaffe.net.layer import Layer


@dataclass
class Node:
    """A layer at its position in a list of nodes that run in this order.

    `members` of a fused node (see `fcaffe.net.rewrite`) are the nodes of the graph whose work its layer does. The
    ids of a node of the graph are indices in the graph's list of blobs.
    """

    index: int
    layer: Layer
    name: str
    bottoms: list[Blob]
    tops: list[Blob]
    bottom_need_backward: list[bool]
    needs_backward: bool = False
    has_loss: bool = False
    members: tuple[Node, ...] = ()
    bottom_ids: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of the blobs, when the layer was reshaped last

    def reshape(self) -> None:
        """Let the layer take over the shapes of its bottoms, if they may have changed. A loss of another shape has new
        memory, perhaps, or more of it: there its gradient is written again."""
        by_shape = self.layer.traits.reshapes_by_shape
        if by_shape and self.versions == [blob.version for blob in self.blobs]:
            return
        shapes = [blob.shape for blob in self.tops] if self.has_loss else []
        self.layer.reshape(self.bottoms, self.tops)
        if by_shape:
            self.versions = [blob.version for blob in self.blobs]
        if shapes != [blob.shape for blob in self.tops if self.has_loss]:
            self.layer.weigh_losses(self.tops)

    def forward(self) -> None:
        self.reshape()
        try:
            self.layer.forward(self.bottoms, self.tops)
        except LayerError:
            raise
        except (NetError, MemoryError) as problem:
            raise self.layer.named(problem) from problem

    def forward_again(self) -> None:
        """Write the tops, and what is saved for backward, a second time; see `Layer.forward_again`."""
        self.layer.forward_again(self.bottoms, self.tops)

    def backward(self) -> None:
        self.layer.check_gradients(self.bottom_need_backward)
        try:
            self.layer.backward(self.tops, self.bottom_need_backward, self.bottoms)
        except LayerError:
            raise
        except MemoryError as problem:
            raise self.layer.named(problem) from problem

    @property
    def is_steady(self) -> bool:
        """Whether a pass leaves the shapes of its tops as they are if those of its bottoms stay."""
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
    def blobs(self) -> list[Blob]:
        return [*self.bottoms, *self.tops]


Hook = Callable[[int], None]  # gets the index of the layer in the net


@dataclass
class Hooks:
    """Called in the order in which they were added. A net that has any runs its layers one by one."""

    before_forward: list[Hook] = field(default_factory=list)
    after_forward: list[Hook] = field(default_factory=list)
    before_backward: list[Hook] = field(default_factory=list)
    after_backward: list[Hook] = field(default_factory=list)

    def in_forward(self) -> bool:
        return bool(self.before_forward or self.after_forward)

    def in_backward(self) -> bool:
        return bool(self.before_backward or self.after_backward)
