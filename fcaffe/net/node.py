"""Node: a layer, its blobs, and the gradients that backward computes for it.

A layer in place overwrites its bottom. If its backward reads the bottom as it was, as that of BatchNorm does, `before`
is a blob for those values, with the gradient of the bottom. The graph, whose blobs are Caffe's, copies them; in a
program each of them has a single writer:

    graph      conv: data -> x    norm: x -> x, copies x to x' first    scale: x -> x, copies x to x" first
    program    conv: data -> x'   norm: x' -> x"                        scale: x" -> x
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from fcaffe.net.blob import Blob
from fcaffe.net.derived import Derived
from fcaffe.net.layer import Layer
from fcaffe.net.placements import Partial


@dataclass(eq=False)
class Node:
    """A layer at its position in a list of nodes that run in this order.

    The ids of a node of the graph are indices in the graph's list of blobs. In a program `before` mostly is the bottom.
    """

    index: int
    layer: Layer
    bottoms: list[Blob]
    tops: list[Blob]
    bottom_need_backward: list[bool]
    needs_backward: bool = False
    bottom_ids: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    before: Blob | None = None
    versions: list[int] = field(default_factory=list)  # of the blobs, when the layer was reshaped last

    @property
    def name(self) -> str:
        return self.layer.name

    def reshape(self) -> None:
        """Let the layer take over the shapes of its bottoms."""
        by_shape = self.layer.traits.reshapes_by_shape
        if by_shape and self.versions == [blob.version for blob in self.blobs]:
            return
        self.layer.doing(self.layer.reshape, self.bottoms, self.tops)
        if self.before is not None:
            if self.before is self.bottoms[0]:
                self.tops[0].share_diff(self.before)
            else:
                self.before.reshape(*self.bottoms[0].shape)
                self.before.share_diff(self.bottoms[0])
        if by_shape:
            self.versions = [blob.version for blob in self.blobs]

    @functools.cached_property
    def derived(self) -> Derived | None:
        """What is derived from weights. Nets that train change them in each pass, and a plugin's layer may do so."""
        context, sources = self.layer.context, [blob for layer in self.layer.layers for blob in layer.blobs]
        serves = context.inference or (context.on_demand and not context.trains)
        if not (serves and sources and self.is_ours) or context.engine.asynchronous:
            return None
        return Derived(sources, at_once=context.inference)

    def forward(self) -> None:
        self.reshape()
        engine, derived = self.layer.engine, self.derived
        engine.derived = None if derived is None else derived.begin()
        try:
            self.layer.doing(self.layer.forward, self._read(), self.tops)
        finally:
            engine.derived = None

    def forward_again(self) -> None:
        """Write the tops, and what is saved for backward, a second time in the present pass, and nothing else."""
        with self.layer.context.temporarily(computes_again=True):
            self.layer.doing(self.layer.forward, self._read(), self.tops)

    @property
    def is_ours(self) -> bool:
        """Whether all its layers are fcaffe's, whose second computation tests show to change nothing. A class from
        elsewhere may do anything in forward."""
        return all(type(layer).__module__.startswith("fcaffe.") for layer in {self.layer, *self.layer.layers})

    @property
    def is_repeatable(self) -> bool:
        """Whether `forward_again` writes the same bits as `forward`. It does not if the layer reads data, runs user
        code or takes values from other workers."""
        if not (self.is_ours and self.bottoms) or self.layer.type == "Redistribute":
            return False
        traits = self.layer.traits
        sums = self.layer.workers.size > 1 and any(isinstance(blob.placement, Partial) for blob in self.tops)
        return not (sums or traits.runs_user_code or traits.reads_host or traits.shapes_by_values)

    def loss(self) -> float:
        """The weighted sum of the tops that carry a loss."""
        return self.layer.doing(self.layer.loss, self.tops) if any(self.layer.loss_weights) else 0.0

    def backward(self) -> None:
        """Run the layer's backward, unless it has no gradient to write. User code runs anyway, as in Caffe."""
        layer, down = self.layer, list(self.bottom_need_backward)
        for index in range(len(self.bottoms)):
            if down[index] and index in layer.traits.labels:
                name = layer.bottom_name(index)
                raise layer.error(f"cannot give {name} a gradient; set propagate_down: false for it")
        for index, blob in enumerate(self.bottoms):
            if down[index] and index in layer.traits.constants:
                down[index], blob.diff[...] = False, 0
        learns = any(any(one.param_propagate_down) for one in layer.layers)
        if learns or any(down) or layer.traits.runs_user_code:
            layer.doing(layer.backward, self.tops, down, self.saved_bottoms)

    def _read(self) -> list[Blob]:
        """The bottoms that forward reads. If backward reads the first one as it is now, it is copied."""
        if self.before is None or self.before is self.bottoms[0] or not self.layer.context.saves_for_backward:
            return self.bottoms
        if self.before not in self.saved():
            return self.bottoms
        self.layer.engine.copy(self.bottoms[0].data, self.before.data)
        return self.saved_bottoms

    @property
    def saved_bottoms(self) -> list[Blob]:
        """The bottoms, with the values that backward reads."""
        return self.bottoms if self.before is None else [self.before, *self.bottoms[1:]]

    def saved(self) -> list[Blob]:
        """The blobs whose data backward reads; see `Layer.saved`."""
        return self.layer.saved(self.saved_bottoms, self.tops)

    def asked(self) -> list[Blob]:
        """The bottoms whose gradients backward writes."""
        return [blob for blob, down in zip(self.bottoms, self.bottom_need_backward, strict=True) if down]

    @property
    def overwrites_gradient(self) -> bool:
        """As in Traits, with these blobs."""
        if not (self.layer.traits.overwrites_gradient and self.is_ours and self.bottom_need_backward[0]):
            return False
        x, y = self.bottoms[0], self.tops[0]
        same_order = x.diff_storage.channels_last == y.diff_storage.channels_last
        return x.shape == y.shape and x.dtype == y.dtype and same_order

    @property
    def in_place(self) -> bool:
        """Whether its top is the memory of its first bottom, which it overwrites."""
        if self.layer.traits.aliases or not (self.bottoms and self.tops):
            return False
        return self.tops[0].data_storage is self.bottoms[0].data_storage

    @functools.cached_property
    def blobs(self) -> list[Blob]:
        return [*self.bottoms, *self.tops]


Hook = Callable[[int], None]  # gets the index of the layer in the net
