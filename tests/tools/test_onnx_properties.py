"""Any ONNX model is converted with equal values, or refused by name: onnx's own node tests, and random graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fcaffe.errors import NetError
from fcaffe.onnx.reading import rules
from tests.tools.onnx_graphs import converted
from tests.tools.onnx_outcomes import inputs_of, node_tests, outcome, outcome_of_random_graph
from tests.tools.random_onnx import Graphs

EVERY = 8  # of onnx's node tests; scripts/check_onnx runs all
GRAPHS = 60
TARGETS = ["bvlc", "bvlc", "forks", "tensorrt", "ncnn", "nnie"]


def test_some_of_onnx_s_node_tests(tmp_path: Path) -> None:
    found = {
        name: outcome(model, inputs_of(model, inputs), outputs, tmp_path / "model.onnx")
        for name, (model, inputs, outputs) in list(node_tests().items())[::EVERY]
    }
    assert sum(what == "equal" for what in found.values()) > len(found) / 3


def test_random_graphs(tmp_path: Path) -> None:
    found = [
        outcome_of_random_graph(seed, tmp_path / "model.onnx", TARGETS[seed % len(TARGETS)]) for seed in range(GRAPHS)
    ]
    known = [what for what in found if what]
    assert len(known) > GRAPHS / 2
    assert sum(what == "equal" for what in known) >= 0.7 * len(known)


def test_a_version_that_the_rule_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax has another default since version 13, and Relu only takes more types."""
    monkeypatch.setattr(rules, "NEWEST", 12)
    graphs = Graphs(0)
    graphs.version = 13
    converted(tmp_path, graphs.chain([("Relu", {}, [])], (1, 2, 4, 4)))
    with pytest.raises(NetError, match=r"Softmax.*version 13 .*opset_version 12"):
        converted(tmp_path, graphs.chain([("Softmax", {}, [])], (1, 2, 4, 4)))


@pytest.mark.parametrize(
    ("op", "attributes", "left"),
    [
        ("Conv", {"group": 1}, "input 1"),  # the default
        ("MaxPool", {"kernel_shape": [2, 2]}, "kernel_shape"),
        ("Softmax", {"axis": 2}, "axis"),
        ("LRN", {"alpha": 0.5, "size": 3}, "alpha"),
    ],
)
def test_what_a_rule_does_not_read_is_an_error(
    op: str, attributes: dict[str, object], left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules.readers, op, lambda step: step.layer("Power", step.x))
    graphs = Graphs(0)
    graphs.version = 12
    more = [np.ones((2, 2, 1, 1), np.float32)] if op == "Conv" else []
    with pytest.raises(NetError, match=rf'node "{op}_0".*its {left} is not read'):
        converted(tmp_path, graphs.chain([(op, attributes, more)], (1, 2, 4, 4)))
