"""Updates that wait for slow sums behind the next forward pass change no bit of what anybody sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.golden_data import make_mnist_lmdbs
from tests.parallel.conftest import needs_mpi
from tests.parallel.test_same_result import MPIEXEC, NORMALIZED


@needs_mpi
def test_the_same_bits(tmp_path: Path) -> None:
    make_mnist_lmdbs(tmp_path)
    (tmp_path / "normalized.prototxt").write_text(NORMALIZED)
    script = Path(__file__).with_name("late_update_ranks.py")
    command = [MPIEXEC, "-n", "3", sys.executable, "-m", "mpi4py", script, tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
