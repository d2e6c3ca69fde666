"""scripts/paper: FireCaffe's published numbers from our own code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict:
    command = [sys.executable, str(ROOT / "scripts" / "paper" / "paper.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_table_1_to_one_percent_or_the_rounding_of_what_is_printed(found: dict) -> None:
    for row in found["table_1"]:
        for key in ("weights_mb", "activations_mb", "tflop"):
            cell = row[key]
            assert abs(cell["error"]) < 0.01 or abs(cell["predicted"] - cell["published"]) < 0.5, (row["net"], key)


def test_cluster_rows_to_seven_percent(found: dict) -> None:
    rows = [row for row in found["tables_2_and_3"] if row["gpus"] > 1]
    assert len(rows) == 5
    assert all(abs(row["hours"]["error"]) < 0.07 for row in rows)
    assert [round(row["throughput_speedup"], 1) for row in rows] == [12.2, 22.7, 39.0, 25.2, 51.0]
    assert rows[-1]["modern"]["ring"]["throughput_speedup"] == pytest.approx(105, rel=0.01)


def test_shapes_of_the_figures(found: dict) -> None:
    """The server's sums grow with the workers, the tree's with their logarithm, the ring's hardly."""
    server, tree, ring = (found["figure_4"][name] for name in ("server", "tree", "ring"))
    for gpus in (2, 4, 8, 16, 32, 64, 128):
        assert server[str(2 * gpus)] == pytest.approx(2 * server[str(gpus)])
        assert tree[str(2 * gpus)] - tree[str(gpus)] == pytest.approx(tree["2"], rel=1e-6)
    assert ring["256"] < 2.2 * ring["2"]
    parts = found["supplement_figure_1"]["server"]
    assert parts["16"][0] > parts["16"][1] and parts["32"][0] < parts["32"][1]


def test_the_page_shows_what_the_script_prints(found: dict) -> None:
    page = (ROOT / "docs" / "firecaffe.md").read_text()
    for row in found["table_1"]:
        assert f"{row['weights_mb']['predicted']:.1f}" in page and f"{row['tflop']['predicted']:.2f}" in page
    for row in found["tables_2_and_3"]:
        if row["gpus"] > 1:
            assert f"{row['hours']['predicted']:.2f}" in page
