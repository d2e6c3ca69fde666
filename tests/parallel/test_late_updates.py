"""Updates that wait for slow sums behind the next forward pass change no bit of what anybody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_data import make_mnist_lmdbs
from tests.parallel.conftest import needs_mpi, run_ranks
from tests.parallel.test_same_result import NORMALIZED

pytestmark = pytest.mark.jobs


@needs_mpi
def test_the_same_bits(tmp_path: Path) -> None:
    make_mnist_lmdbs(tmp_path)
    (tmp_path / "normalized.prototxt").write_text(NORMALIZED)
    run_ranks(3, "late_update_ranks.py", tmp_path, folder=tmp_path)
