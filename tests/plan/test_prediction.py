"""Predictions: rows, and what follows from them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fcaffe.errors import UsageError
from fcaffe.layers.input import Input
from fcaffe.net import Net, registry
from fcaffe.net.build.filter import filter_net
from fcaffe.net.build.redistribute import Redistribute, adjoint
from fcaffe.net.placements import Partial, Replicate, Shard
from fcaffe.plan.machine import DEVICES, FCAFFE, MACHINES, TITAN
from fcaffe.plan.prediction import Prediction
from fcaffe.plan.reductions import COMPARED, sum_of
from fcaffe.plan.work import work_of_net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import read_net_for
from fcaffe.tools.shapes import READERS, hollow_context, replace_reader
from tests.plan.conftest import ROOT, work_of
from tests.soon import soon

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
counts = st.integers(1, 4096)
names = st.sampled_from(sorted(COMPARED))


@relaxed
@given(st.sampled_from(sorted(MACHINES)), names, counts, st.integers(1, 4096), st.booleans())
def test_a_row_is_the_sum_of_its_parts(googlenet, machine, name, workers, batch, each):
    plan = Prediction(googlenet, MACHINES[machine], batch, each)
    row = plan.row(workers, name)
    assert row.seconds == pytest.approx(row.compute + row.exposed + row.data + row.update)
    assert 0 <= row.exposed <= row.communication + 1e-12
    assert row.efficiency <= 1 + 1e-9
    assert row.images_per_second * row.seconds == pytest.approx(row.batch)
    without = replace(plan, overlap=False, bucket=4 << 20).row(workers, name)
    with_overlap = replace(plan, bucket=4 << 20).row(workers, name)
    assert with_overlap.seconds <= without.seconds * (1 + 1e-9)


def test_the_best_is_the_fastest_of_all(googlenet):
    plan = Prediction(googlenet, MACHINES["h200"], 4096)
    for workers in (2, 8, 64, 1000):
        rows = plan.rows([workers], ["all"])
        assert len(rows) == len(COMPARED)
        assert plan.best(workers).seconds == pytest.approx(min(row.seconds for row in rows))


def test_server_overtakes_computing_between_16_and_32(googlenet):
    plan = Prediction(googlenet, TITAN, 1024, overlap=False)
    crossing = plan.crossover("server")
    assert crossing is not None and 16 < crossing <= 32
    assert plan.row(crossing, "server").exposed > plan.row(crossing, "server").compute
    assert plan.row(crossing - 1, "server").exposed < plan.row(crossing - 1, "server").compute


def test_a_modern_reduction_on_the_papers_machine(googlenet):
    """No overlap: 0.215 s, 105 times one worker; with overlap more, and never more than workers."""
    asked = Prediction(googlenet, TITAN, 1024)
    ring = replace(asked, overlap=False).row(128, "ring")
    assert ring.seconds == pytest.approx(0.215, rel=0.01)
    assert 100 < ring.speedup < asked.best(128).speedup <= 128


def test_a_hundred_thousand_workers_take_no_time(googlenet):
    with soon():
        assert len(Prediction(googlenet, MACHINES["h200"], 1024).rows([100_000], ["all"])) == len(COMPARED)


def test_per_worker_batches_grow_with_workers(nin):
    split, each = (Prediction(nin, TITAN, 256, per_worker) for per_worker in (False, True))
    assert [plan.row(32, "ring").batch for plan in (split, each)] == [256, 8192]
    assert [plan.row(32, "ring").share for plan in (split, each)] == [8, 256]
    assert [plan.row(3, "ring").share for plan in (split, each)] == [86, 256]


def test_passes_of_an_iteration_sum_once(nin):
    one, four = (Prediction(replace(nin, passes=passes), TITAN, 256, overlap=False) for passes in (1, 4))
    a, b = one.row(32, "ring"), four.row(32, "ring")
    assert b.compute == pytest.approx(4 * a.compute)
    assert (b.communication, b.batch) == (a.communication, 1024)


def test_reading_counts_where_it_is_slower_than_all_else(nin):
    plan = Prediction(nin, replace(TITAN, read_images_in_all=1000.0), 256)
    row = plan.row(32, "ring")
    assert row.seconds == pytest.approx(0.256)
    assert row.data > 0 == Prediction(nin, replace(TITAN, read_images=120.0), 256).row(1, "ring").exposed


def test_fcaffe_sums_buckets_even_without_overlap(googlenet):
    book, own = (
        Prediction(googlenet, replace(TITAN, exchange=way), 1024, overlap=False) for way in ("textbook", FCAFFE)
    )
    assert len(book.cut(8)) == 1 < len(own.cut(8))
    assert own.row(8, "ring").communication == pytest.approx(
        sum(sum_of("ring", own.machine, 8, bucket.bytes) for bucket in own.cut(8))
    )


def test_memory_counts_what_fcaffe_allocates(googlenet):
    plan = Prediction(replace(googlenet, histories=2), TITAN, 1024)
    need = plan.memory(plan.row(32, "ring"))
    assert need["weights"] == need["gradients"] == 4 * 13_378_280 == need["histories"] / 2
    assert need["total"] == sum(need[name] for name in ("weights", "gradients", "histories", "activations"))
    assert plan.memory(plan.row(16, "ring"))["activations"] == 2 * need["activations"]


class Reading(Input):
    """Stands for a layer that reads batches."""

    def setup(self, bottom, top):
        for blob, shape in zip(top, self.param.input_param.shape, strict=True):
            share, blob.placement = self.context.share_of(shape.dim[0])
            blob.reshape(share.count, *shape.dim[1:])


def bytes_sent(node, workers):
    """What each worker sends to redistribute a blob in one pass, forward and backward."""
    layer, part = node.layer, 4 * math.prod(node.layer.context.whole_shape(node.bottoms[0])) * (workers - 1) / workers

    def sent(source, target):
        if isinstance(source, Replicate) or isinstance(target, Partial):
            return 0
        if isinstance(source, Partial):
            return part if isinstance(target, Shard) else workers * part
        return part / workers if isinstance(target, Shard) else part

    return sent(layer.source, layer.target) + sent(adjoint(layer.target), adjoint(layer.source))


def test_split_weights_move_what_the_graph_moves(monkeypatch):
    monkeypatch.setitem(registry._registry, "Reading", Reading)
    for name, workers in itertools.product(["alexnet", "vgg16", "googlenet", "lenet"], [2, 4]):
        work = work_of_net(f"{ROOT}/models/{name}/train_val.prototxt")
        param, context = filter_net(read_net_for(work.path, pb.TRAIN)), hollow_context()
        for layer in param.layer:
            if layer.type in READERS:
                replace_reader(layer, "Reading", work.path, None)
        context.workers.size, context.split_below = workers, 1
        net, split = Net(param, context), work.split(workers, work.batch)
        sent = sum(bytes_sent(node, workers) for node in net.nodes if isinstance(node.layer, Redistribute))
        assert sent == pytest.approx(2 * (workers - 1) / workers * sum(split.blobs), rel=1e-3)
        own = sum(one.blob.count for one in net.parameters.owned if one.is_split)
        assert (net.parameters.exchanged, own) == (split.parameters, split.own)


def test_a_type_of_numbers_that_a_device_lacks_is_refused(nin):
    with pytest.raises(UsageError, match="K20: no speed in tf32 is known, only in fp32"):
        Prediction(nin, TITAN, 256, math="tf32").row(2, "ring")
    assert DEVICES["H200"].peak_of("tf32") > DEVICES["H200"].peak_of("fp32")


def test_a_net_without_a_loss_is_planned_for_as_if_it_had_one():
    deploy, train = (work_of(f"nin_cifar10/{name}.prototxt") for name in ("deploy", "train_val"))
    forward = [sum(layer.forward[0] for layer in work.layers) for work in (deploy, train)]
    assert forward[0] == forward[1]
    backward = [sum(layer.backward[0] for layer in work.layers) for work in (deploy, train)]
    assert backward[0] == pytest.approx(backward[1], rel=0.1) and backward[0] >= backward[1] > 0
