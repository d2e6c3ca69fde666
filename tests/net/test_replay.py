"""A replay writes what the nodes write, and ends when weights, shapes or memory change."""

import numpy as np
import pytest

from tests.engine_choice import engine
from tests.net.test_inference_nets import BLOCK, INPUT, behind, check, conv, net_of

pytestmark = pytest.mark.usefixtures("on_each_engine")

SELECTED = """
layer { name: "of" type: "Input" top: "of" input_param { shape { dim: 2 } } }
layer { name: "some" type: "%s" bottom: "x" bottom: "of" top: "some" }
"""


def test_a_replay_runs_no_node(monkeypatch):
    """From the third pass on with the same weights and shapes; memory that has moved ends it."""
    used = engine()
    whole, plain = net_of(BLOCK, True, used), net_of(BLOCK, False, used)
    asked = []
    nodes = [node for node in whole.fused.nodes if node.layer.type == "FoldedConvolution"]
    for node in nodes if used.records else []:
        run = node.layer.forward
        monkeypatch.setattr(node.layer, "forward", lambda *blobs, run=run: (asked.append(number), run(*blobs)))
    for number in range(20):
        if number == 10:
            storage = whole.blob("x").data_storage
            storage.replace(storage.buffer.copy())
        for net in whole, plain:
            net.blob("x").data[...] = np.random.default_rng(number).standard_normal(net.blob("x").shape)
            net.forward()
        check(whole, plain, f"pass {number}")
    assert asked == [number for number in (0, 1, 10, 11) for _ in nodes] * used.records


@pytest.mark.parametrize("kind", ["Filter", "BatchReindex"])
def test_nodes_that_change_shapes_amid_a_pass(kind):
    used = engine()
    text = "\n".join([INPUT, SELECTED % kind, conv("a", "some", 16), behind("a", "ReLU"), conv("b", "a", 8)])
    whole, plain = net_of(text, True, used), net_of(text, False, used)
    random = np.random.default_rng(1)
    for number, chosen in enumerate([3] * 6 + [2, 2, 5, 5, 5, 5, 1]):
        x = random.standard_normal((6, 16, 20, 20))
        of = np.arange(6) < chosen if kind == "Filter" else random.integers(0, 6, chosen)
        for net in whole, plain:
            net.blob("x").reshape(*x.shape)
            net.blob("of").reshape(*of.shape)
            net.reshape()
            net.blob("x").data[...] = x
            net.blob("of").data[...] = of
            net.forward()
        assert whole.blob("b").shape == plain.blob("b").shape == (chosen, 8, 20, 20)
        check(whole, plain, f"pass {number}")
