"""A net's parameters: their owners, their multipliers, and one flat buffer for all."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.net.blob import Array, Blob, Storage
from fcaffe.net.layer import Layer
from fcaffe.net.placements import Shard
from fcaffe.proto import caffe_pb2 as pb


@dataclass
class Parameter:
    """A blob that learns, with the multipliers of its ParamSpec (None: not stated)."""

    blob: Blob
    layer: Layer
    index: int
    stated_lr_mult: float | None
    stated_decay_mult: float | None
    sharers: list[Blob] = field(default_factory=list)
    flat_storage: Any = None  # its part of the flat buffer

    @property
    def lr_mult(self) -> float:
        return 1.0 if self.stated_lr_mult is None else self.stated_lr_mult

    @property
    def decay_mult(self) -> float:
        return 1.0 if self.stated_decay_mult is None else self.stated_decay_mult

    @property
    def is_split(self) -> bool:
        """Whether each worker has only a part, whose gradient no other worker has."""
        return isinstance(self.blob.placement, Shard)

    @property
    def room(self) -> int:
        """The values in the largest part of a worker."""
        shard, workers = self.blob.placement, self.layer.context.workers
        if not isinstance(shard, Shard):
            return self.blob.count
        return self.blob.count // workers.part(shard.samples).count * -(-shard.samples // workers.size)


class Parameters:
    """The learnable blobs of a net in layer order; a blob shared by name is listed once, under its owner.

    In a flat buffer each begins at a multiple of `step` values. Split ones come last, at the same offsets on each
    worker.
    """

    def __init__(self, step: int = 1) -> None:
        self.step = step
        self.owned: list[Parameter] = []
        self._named: dict[str, Parameter] = {}

    def append(self, layer: Layer, index: int) -> None:
        """Add blob `index` of a layer, as an owner or as a sharer of a name that an earlier layer owns."""
        spec = spec_of(layer, index)
        owner = self._named.get(spec.name) if spec.name else None
        blob = layer.blobs[index]
        lr_mult = spec.lr_mult if spec.HasField("lr_mult") else None
        decay_mult = spec.decay_mult if spec.HasField("decay_mult") else None
        if owner is None:
            parameter = Parameter(blob, layer, index, lr_mult, decay_mult)
            self.owned.append(parameter)
            if spec.name:
                self._named[spec.name] = parameter
            return
        log.sharing_parameters(spec.name, owner.layer.name, owner.index)
        permissive = spec.share_mode == pb.ParamSpec.PERMISSIVE
        if (blob.count != owner.blob.count) if permissive else (blob.shape != owner.blob.shape):
            raise layer.error(
                f"cannot share param '{spec.name}' of shape {blob.shape} with layer '{owner.layer.name}', which owns "
                f"it with shape {owner.blob.shape}; share_mode: PERMISSIVE needs equal counts only"
            )
        owner.stated_lr_mult = _agreed(layer, spec.name, "lr_mult", owner.stated_lr_mult, lr_mult)
        owner.stated_decay_mult = _agreed(layer, spec.name, "decay_mult", owner.stated_decay_mult, decay_mult)
        owner.sharers.append(blob)

    def share(self) -> None:
        """Let sharers use their owner's memory, after all setups, in which each fills its own, as in Caffe."""
        for parameter in self.owned:
            if any(blob.shape != parameter.blob.shape for blob in parameter.sharers):
                parameter.blob.make_contiguous()  # what they share is the values in C order
            for blob in parameter.sharers:
                blob.share_data(parameter.blob)
                blob.share_diff(parameter.blob)

    @property
    def count(self) -> int:
        return sum(parameter.blob.count for parameter in self.owned)

    @property
    def extent(self) -> int:
        """The size of a flat buffer: `count`, and what lies between parameters, which stays 0."""
        return max((own.start + one.room for one, own in self.with_slices()), default=0)

    @property
    def exchanged(self) -> int:
        """The offset up to which a flat buffer has parameters whose gradients the workers add up."""
        return max((own.stop for parameter, own in self.with_slices() if not parameter.is_split), default=0)

    def flatten(self, data: Array, diff: Array) -> None:
        """Move all blobs into two flat buffers of `extent` values, of which they become views."""
        self.diff, self.to_sum = diff, diff[: self.exchanged]
        for parameter, part in self.with_slices():
            parameter.blob.move_to(data[part], diff[part])
            parameter.flat_storage = parameter.blob.data_storage

    def with_slices(self) -> Iterator[tuple[Parameter, slice]]:
        """Yield each parameter with its slice of a flat buffer."""
        return zip(self.owned, self.slices, strict=True)

    @functools.cached_property
    def slices(self) -> list[slice]:
        """Where each parameter lies in a flat buffer, once the net is built."""
        slices, start = [slice(0)] * len(self.owned), 0
        for index, parameter in sorted(enumerate(self.owned), key=lambda pair: pair[1].is_split):
            slices[index] = slice(start, start + parameter.blob.count)
            start += -(-parameter.room // self.step) * self.step
        return slices

    def clear_diffs(self) -> None:
        """Make all gradients zero; in a flat buffer they are so after the next backward pass."""
        for parameter in self.owned:
            if parameter.blob not in parameter.layer.running_statistics:
                parameter.blob.diff_storage.clear()

    def cleared(self) -> list[Storage]:
        """The gradients that have been cleared, and not written or read since."""
        return [p.blob.diff_storage for p in self.owned if p.blob.diff_storage.is_clear]

    def final_offsets(self, nodes: Sequence[Sequence[Layer]]) -> list[int]:
        """For nodes of these layers, the offset from which on the flat gradients are final after the node's
        backward."""
        own: dict[Layer, int] = {}
        for parameter, part in self.with_slices():
            if not parameter.is_split:
                own.setdefault(parameter.layer, part.start)
        offsets, offset = [], self.exchanged
        for layers in reversed(nodes):
            offset = min([offset, *(own[layer] for layer in layers if layer in own)])
            offsets.append(offset)
        return offsets[::-1]

    def debug(self) -> None:
        """Log the norms of all data and diffs."""
        sums = np.zeros(4)
        for parameter in self.owned:
            data, diff = parameter.blob.data.reshape(-1), parameter.blob.diff.reshape(-1)
            values = np.array([float(one) for one in (abs(data).sum(), abs(diff).sum(), data @ data, diff @ diff)])
            sums += parameter.layer.context.workers.sum_array(values) if parameter.is_split else values
        log.debug_all_params((sums[0], sums[1]), (sums[2] ** 0.5, sums[3] ** 0.5))


def spec_of(layer: Layer, index: int) -> Any:
    """The ParamSpec of blob `index` of a layer."""
    return layer.param.param[index] if index < len(layer.param.param) else pb.ParamSpec()


def _agreed(layer: Layer, name: str, what: str, first: float | None, second: float | None) -> float | None:
    """The multiplier of a shared parameter, or None if no layer states one. All that are stated must agree."""
    if first is not None and second is not None and first != second:
        raise layer.error(f"shared param '{name}' has mismatched {what}: {first:g} and {second:g}")
    return second if first is None else first
