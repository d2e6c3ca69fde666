"""Twins: further nets over the same parameters and readers, for passes that run at the same time on other threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.layers.input import DummyData
from fcaffe.net.layer import Held, Layer
from fcaffe.net.net import Net
from fcaffe.net.node import Node
from fcaffe.rng import CaffeRandom


def twin_of(net: Net, param: Any) -> Net:
    """A net of the same NetParameter with an engine and activations of its own, for one other thread.

    The layers that read are those of `net` and serve both. The parameters have no values of their own: let both nets
    have the same flat buffer (`Parameters.flatten`), that of `net` last.
    """
    readers = {node.layer.key: node for node in net.nodes if _reads(node)}
    context = replace(net.context, engine=net.context.engine.another(), random=Zeros(), readers=readers)
    context.share = net.context.share
    with log.quiet(3):
        twin = Net(param, context)
    for ours, theirs in zip(net.layers, twin.layers, strict=True):
        if ours.held is Held.ALIKE:
            for name, blob in theirs.state_blobs().items():
                blob.share_data(ours.state_blobs()[name])
    return twin


def why_no_twins(net: Net, in_step: bool) -> str:
    """The reason why twins cannot be used: the first layer that carries state from pass to pass, besides the readers.

    With `in_step` each shard has a net of its own. So layers may carry the state of the shard's streams, or a state in
    blobs that is the same for all shards, which twins share. Empty if twins can be used.
    """
    if net.context.engine.asynchronous:
        return "an engine for GPUs"
    for layer in (node.layer for node in net.nodes if not _reads(node)):
        alike = layer.held is Held.ALIKE and layer.state().keys() == layer.state_blobs().keys()
        has_state = bool(layer.state()) and not (in_step and (alike or layer.held is Held.STREAMS))
        if has_state or type(layer).close is not Layer.close:
            return f'layer "{layer.name}" ({layer.type}), which has a state'
    return ""


def _reads(node: Node) -> bool:
    return node.layer.traits.reads_host and not (node.bottoms or isinstance(node.layer, DummyData))


class Zeros(CaffeRandom):
    """Draws nothing but zeros, for parameters that are overwritten: filling large ones takes seconds."""

    def __init__(self) -> None:
        super().__init__(0)

    def uniform(self, low: float, high: float, n: int) -> np.ndarray:
        return np.zeros(n, np.float32)

    def normal(self, mean: float, std: float, n: int) -> np.ndarray:
        return np.zeros(n, np.float32)
