"""Split insertion: a blob that several layers read gets a Split layer, so that their gradients add up."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fcaffe.errors import NetError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.suggestions import nearest

Source = tuple[int, int]  # a layer's index and the index of one of its tops


def split_name(layer: str, blob: str, top_index: int) -> str:
    return f"{blob}_{layer}_{top_index}_split"


def insert_splits(param: Any) -> Any:
    """A copy of the NetParameter with a Split layer behind each top that is read more than once.

    A loss weight counts as a reader; it moves to the first top of the Split.
    """
    sources, readers, loss_weights = _connections(param)
    result = pb.NetParameter()
    result.CopyFrom(param)
    del result.layer[:]
    next_split: dict[Source, int] = defaultdict(int)
    for i, original in enumerate(param.layer):
        layer = result.layer.add()
        layer.CopyFrom(original)
        for j, blob in enumerate(original.bottom):
            source = sources[i, j]
            if readers[source] > 1:
                name = split_name(param.layer[source[0]].name, blob, source[1])
                layer.bottom[j] = f"{name}_{next_split[source]}"
                next_split[source] += 1
        for j, blob in enumerate(original.top):
            count = readers[i, j]
            if count < 2:
                continue
            name = split_name(original.name, blob, j)
            split = result.layer.add(name=name, type="Split", bottom=[blob])
            split.top.extend(f"{name}_{k}" for k in range(count))
            weight = loss_weights.get((i, j), 0.0)
            if weight:
                split.loss_weight.extend([weight] + [0.0] * (count - 1))
                layer.ClearField("loss_weight")
                next_split[i, j] += 1
    return result


def unsplit_names(param: Any, split: Any) -> dict[str, str]:
    """Of each top of a Split that `insert_splits` has put into `param`: the blob that the user knows."""
    own = {layer.name for layer in param.layer}
    return {top: layer.bottom[0] for layer in split.layer if layer.name not in own for top in layer.top}


def _connections(param: Any) -> tuple[dict[Source, Source], dict[Source, int], dict[Source, float]]:
    """Where each (layer, bottom) comes from, how many readers each top has, and the tops' loss weights."""
    newest: dict[str, Source] = {}
    sources: dict[Source, Source] = {}
    readers: dict[Source, int] = defaultdict(int)
    loss_weights: dict[Source, float] = {}
    for i, layer in enumerate(param.layer):
        for j, blob in enumerate(layer.bottom):
            if blob not in newest:
                raise NetError(unknown_bottom(layer.name, j, blob, newest))
            sources[i, j] = newest[blob]
            readers[newest[blob]] += 1
        for j, blob in enumerate(layer.top):
            newest[blob] = (i, j)
        for blob, weight in zip(layer.top, layer.loss_weight, strict=False):
            loss_weights[newest[blob]] = weight
            if weight:
                readers[newest[blob]] += 1
    return sources, readers, loss_weights


def unknown_bottom(layer: str, index: int, blob: str, known: Any) -> str:
    near = nearest(blob, known)
    remedy = f"did you mean '{near}'?" if near else "no layer before it, of this phase and these stages, has such a top"
    return f"Unknown bottom blob '{blob}' (layer '{layer}', bottom index {index}): {remedy}"
