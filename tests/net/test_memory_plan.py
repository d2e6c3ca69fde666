"""Types and orders of blobs, and how arrays share memory."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fcaffe.engines.memory import ALIGNMENT, GAP
from fcaffe.errors import NetError
from fcaffe.net.blob import Blob, Storage
from fcaffe.net.run.arena import START, memory_of, share_memory
from fcaffe.net.run.layout import STEP, Use, layout, live_ranges, uses
from fcaffe.net.run.program import Program, Step
from tests.net.test_recompute import INPUT, NETS, build, convolution, loss


def test_a_blob_keeps_its_type():
    half = Blob(np, (2, 3, 4, 5), channels_last=True, dtype="float16")
    half.reshape(4, 3, 4, 5)
    assert half.data.dtype == half.diff.dtype == half.dtype == np.float16
    with pytest.raises(NetError, match="float16"):
        half.set_dtype("float32")
    fresh = Blob(np, (4, 3, 4, 5))
    for share in (fresh.share_data, fresh.share_diff):
        with pytest.raises(NetError, match="float32 cannot share memory with one of float16"):
            share(half)
    fresh.set_dtype("float16")
    fresh.share_data(half)
    assert np.shares_memory(fresh.data, half.data)


def test_a_flat_buffer_has_the_order_of_the_blob():
    blob, data, diff = Blob(np, (2, 3, 4, 5), channels_last=True), np.ones(120, "f"), np.ones(120, "f")
    blob.data[...] = np.arange(120).reshape(2, 3, 4, 5)
    blob.move_to(data, diff)
    blob.make_contiguous()  # does nothing to what others see as a flat buffer
    assert np.array_equal(blob.data.ravel(), np.arange(120)) and not diff.any()
    assert np.array_equal(data.reshape(2, 4, 5, 3).transpose(0, 3, 1, 2), blob.data)
    assert np.array_equal(blob.logical(data), blob.data)


def test_types_share_a_stretch_and_values_made_again_may_move():
    a, b, c = Storage(np, False, 1000), Storage(np, False, 500, "float64"), Storage(np, False, 7, "float16")
    moves = share_memory([Use(a, [(0, 1)]), Use(b, [(2, 5)]), Use(c, [(0, 9)]), Use(a, [(6, 7)], before=3)])
    assert np.shares_memory(a.buffer, b.buffer) and not np.shares_memory(a.buffer, c.buffer)
    assert [storage.buffer.dtype for storage in (a, b, c)] == ["float32", "float64", "float16"]
    assert set(moves) == {START, 3} and moves[START][0][1] is a.buffer
    assert a.buffer.base.nbytes <= 4096 + STEP + ALIGNMENT + GAP


def test_activations_die_as_soon_as_backward_allows():
    net = build(NETS["branches"]())
    spans = live_ranges(net.fused, {})
    last_forward = len(net.fused.nodes) - 1

    def end(name):
        return max(last for _, last in spans[net.blob(name).data_storage])

    assert end("cat") <= last_forward  # dropout needs its mask only
    assert end("norm") > last_forward and end("sigmoid") > last_forward
    assert net.memory().peak < memory_of(net.fused, {}, in_arena=False).peak
    assert net.blob("loss").data_storage not in spans


def test_gradients_are_written_over_those_that_nobody_reads_later():
    functions = [("conv", "a", "Sigmoid"), ("a", "b", "TanH"), ("b", "c", "Exp"), ("c", "d", "AbsVal")]
    layers = [f'layer {{ name: "{y}" type: "{kind}" bottom: "{x}" top: "{y}" }}' for x, y, kind in functions]
    total = 'layer { name: "sum" type: "Eltwise" bottom: "d" bottom: "b" top: "sum" }'
    net = build("\n".join([INPUT, convolution("conv", "x", "conv"), *layers, total, loss("sum")]))
    net.forward()
    net.backward()
    one_memory = [net.blob(name) for name in ("conv", "a", "b", "c", "d", "sum")]
    assert all(blob.shares_diff(one_memory[-1]) for blob in one_memory)
    second = next(node for node in net.nodes if node.name == "sum").bottoms[1]
    assert not second.shares_diff(one_memory[-1]), "the Split behind b adds it to the other"


MB = 2**20


def test_the_example_of_program_and_live_ranges():
    net = build("""
        layer { name: "in" type: "Input" top: "data" top: "label"
          input_param { shape { dim: 1 dim: 3 dim: 6 dim: 6 } shape { dim: 1 dim: 4 dim: 4 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "y"
          convolution_param { num_output: 4 kernel_size: 3 } }
        layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" }""")
    nodes = net.fused.nodes[1:]  # without the Input layer, whose steps read and write nothing that is planned
    assert [node.name for node in nodes] == ["conv+relu", "loss"]
    program = Program(nodes, net.outer, net.parameters, gradients=True)
    blob = net.blob("y")
    y, p, dy = blob.data_storage, net.layers[-1].probability.data_storage, blob.diff_storage
    (s,) = program.accesses[0].saved
    expected = [("", "y s"), ("y", "p"), ("p", "dy"), ("s dy", ""), ("dy", "")]
    names = {"y": y, "p": p, "dy": dy, "s": s}
    assert program.steps({}) == [
        Step(*({names[name]: None for name in side.split()} for side in sides)) for sides in expected
    ]
    assert live_ranges(program, {}) == {y: [(0, 1)], s: [(0, 3)], p: [(1, 2)], dy: [(2, 4)]}


def test_the_example_of_layout():
    sizes = {"x": (8, (0, 3)), "p": (1, (1, 2)), "dy": (8, (2, 4)), "dx": (6, (5, 6))}
    offsets, end = layout([Use(Storage(np, False, size * MB, "uint8"), [span]) for size, span in sizes.values()])
    assert offsets == [0, 16 * MB, 8 * MB, 0] and end == 17 * MB


def plans() -> list[object]:
    """The bytes and the offset of each use of the memory plans of some nets, with and without recomputation."""
    found: list[object] = []
    for text in NETS.values():
        for recompute in (False, True):
            net = build(text(), recompute=recompute)
            wanted = uses(net.fused, net.arena.choose(net.fused))
            found.append([[use.storage.nbytes, use.spans, use.before] for use in wanted] + list(layout(wanted)))
            net.arena.follow(net.fused)
            storages = [one for blob in net.blobs for one in (blob.data_storage, blob.diff_storage)]
            here = [one for one in storages if one in net.arena.storages]
            found.append([one.address - min(other.address for other in here) for one in here])
    return found


def test_a_plan_is_the_same_in_each_process():
    def run(seed: int) -> str:
        command = [sys.executable, "-c", "from tests.net.test_memory_plan import plans; print(plans())"]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "GLOG_minloglevel": "2"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(2) as pool:
        first, *others = pool.map(run, range(10))
    assert len(first) > 1000 and others == [first] * 9
