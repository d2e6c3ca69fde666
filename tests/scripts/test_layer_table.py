"""scripts/layer_table: a row for every layer type with golden cases."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.golden_values import TOLERANCE
from tests.layers.replay import golden_cases
from tests.layers.test_fork_layers import CASES as FORK_CASES

ROOT = Path(__file__).parents[2]
OWN, FORKS = ({case["type"] for case in cases} for cases in (golden_cases(), FORK_CASES))


def row_types(text):
    return set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))


def test_script_writes_a_row_per_type(tmp_path):
    out = tmp_path / "layers.md"
    command = [sys.executable, str(ROOT / "scripts" / "layer_table"), str(out)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert result.returncode == 0, result.stderr
    cases = len(golden_cases()) + len(FORK_CASES)
    assert f"{len(OWN) + len(FORKS)} layer types, {cases} cases" in result.stdout
    assert row_types(out.read_text()) == OWN | FORKS
    assert "| `Crop` | 7 | same |" in out.read_text()


def test_page_has_every_type_and_no_difference_beyond_the_tolerance():
    """Otherwise run scripts/layer_table again. The digits depend on the machine."""
    page = (ROOT / "docs" / "layers.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (.*) \|$", page, re.MULTILINE)
    cases = [pair for of in (golden_cases(), FORK_CASES) for pair in Counter(case["type"] for case in of).items()]
    assert sorted((kind, int(count)) for kind, count, _ in rows) == sorted(cases)
    assert all(float(cell) <= TOLERANCE for _, _, cell in rows if cell != "same")
