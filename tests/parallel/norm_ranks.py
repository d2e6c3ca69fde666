"""One rank of random nets with BatchNorms over the batch of all: `python -m mpi4py norm_ranks.py ENGINE SEEDS`.

Fused, layer by layer, and by one worker with the whole batch, to the same numbers. So with images of one pixel, too:
a share of one sample, a single value of each channel, is then computed in another way than a larger one.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from fcaffe import log
from fcaffe.engines import cpu_engine
from fcaffe.layers.fused.batch_norm_scale import BatchNormScale
from fcaffe.net import Context, Net
from fcaffe.net.workers import Workers
from fcaffe.parallel.workers import MpiWorkers
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net
from fcaffe.rng import CaffeRandom
from fcaffe.share import split_batch
from tests.net.random_residual_nets import RandomResidualNet

WITHIN = 3e-4  # of the largest value of an array
BATCH = 11  # which 2 or 3 ranks have in unequal parts

comm = MPI.COMM_WORLD

SINGLE_PIXELS = """
layer { name: "in" type: "Input" top: "x" top: "label" input_param {
  shape { dim: 4 dim: 8 dim: 1 dim: 1 } shape { dim: 4 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "y"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "n" type: "BatchNorm" bottom: "y" top: "z" }
layer { name: "s" type: "Scale" bottom: "z" top: "z" scale_param { bias_term: true
  filler { type: "uniform" min: 0.5 max: 2 } bias_filler { type: "uniform" min: -1 max: 1 } } }
layer { name: "r" type: "ReLU" bottom: "z" top: "z" }
layer { name: "ip" type: "InnerProduct" bottom: "z" top: "o"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "o" bottom: "label" top: "loss" }"""


class Counted(MpiWorkers):
    """Counts its messages."""

    messages = 0

    def gather_array(self, values: Any) -> Any:
        self.messages += 1
        return super().gather_array(values)


def build(engine: Any, text: str, seed: int, workers: Workers, whole_passes: bool) -> Net:
    param = parse_text(text, pb.NetParameter)
    upgrade_net(param, "net")
    param.state.phase = pb.TRAIN
    context = Context(engine, CaffeRandom(seed + 1), workers=workers, sync_batch_norm=True, whole_passes=whole_passes)
    return Net(param, context)


def trained(net: Net, batch: int, part: slice) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Loss, gradients, and what BatchNorms keep, after two passes over this part of the batches."""
    shape, losses = net.blob("x").shape[1:], []
    for number in range(2):
        random = np.random.default_rng([number, *shape])
        images, labels = random.standard_normal((batch, *shape), np.float32) + 1, random.integers(0, 4, batch)
        net.blob("x").reshape(*images[part].shape)
        net.blob("label").reshape(*labels[part].shape)
        net.blob("x").data[...], net.blob("label").data[...] = images[part], labels[part]
        net.parameters.clear_diffs()
        losses.append(net.forward())
        net.backward()
    owned = net.parameters.owned
    kept = [each.blob.data.copy() for each in owned if each.layer.type == "BatchNorm"]
    return np.array(losses), [each.blob.diff.copy() for each in owned if each.layer.type != "BatchNorm"], kept


def check(ours: list[np.ndarray], theirs: list[np.ndarray], what: str) -> None:
    largest = max((np.abs(each).max() for each in theirs), default=0)
    for mine, other in zip(ours, theirs, strict=True):
        assert np.abs(mine - other).max() <= WITHIN * max(np.abs(other).max(), 1e-2 * largest), what


def compare(engine: Any, workers: Counted, text: str, seed: int, batch: int) -> set[type]:
    """Returns the types of layers that have been at work."""
    share = split_batch(batch, comm.rank, comm.size)
    kinds: set[type] = set()
    found = []
    for fuses in (True, False):
        net = build(engine, text, seed, workers, fuses)
        norms = sum(layer.type == "BatchNorm" for layer in net.layers)
        kinds |= {type(node.layer) for node in net.fused.nodes}
        workers.messages = 0
        losses, gradients, kept = trained(net, batch, slice(share.first, share.first + share.count))
        assert comm.size == 1 or workers.messages == 2 * (2 * norms + 1), "one forward, one backward, and the loss"
        everyones = comm.allgather(kept)
        assert all(np.array_equal(a, b) for other in everyones for a, b in zip(kept, other, strict=True)), "kept"
        found.append(([workers.sum_array(losses)], [workers.sum_array(each) for each in gradients], kept))
    alone = trained(build(engine, text, seed, Workers(), False), batch, slice(None))
    for number, what in enumerate(("loss", "gradients", "statistics")):
        check(found[0][number], found[1][number], f"{what} of seed {seed}, fused and layer by layer")
        theirs: Any = alone[number]
        check(found[0][number], [theirs] if number == 0 else theirs, f"{what} of seed {seed}, with one worker")
    return kinds


def main(name: str, seeds: str) -> None:
    log.set_minimum(3)
    engine, workers = cpu_engine(name=name), Counted(comm, per_worker=True)
    kinds: set[type] = set()
    for seed in range(int(seeds)):
        text = RandomResidualNet(seed).text.replace("use_global_stats: true", "moving_average_fraction: 0.9")
        kinds |= compare(engine, workers, text, seed, BATCH)
    assert BatchNormScale in kinds
    compare(engine, workers, SINGLE_PIXELS, 0, comm.size + 1)  # rank 0 has two samples, all others one
    workers.close()


main(*sys.argv[1:])
