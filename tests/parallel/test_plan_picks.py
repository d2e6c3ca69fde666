"""What `train --plan FILE` picks between hosts, all ranks do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.parallel.conftest import MPIEXEC, Job, needs_mpi

AS_HOSTS = 'PMI_HOSTNAME=host$PMI_RANK exec "$0" "$@"'  # each rank takes itself for one on a host of its own
LAYERS = {"ip": [[0.001, 0.002]], "loss": [[0.0005, 0.0005]]}


@needs_mpi
def test_all_ranks_sum_as_rank_0_has_picked(start: Callable[..., Job], folder: Path) -> None:
    """Where messages take long, doubling, which needs fewer than the halving of `auto`. Ranks with other reductions, or
    buckets, would wait for one another, or get messages of other lengths."""
    net = folder / "net.prototxt"
    net.write_text(net.read_text().replace("num_output: 3", "num_output: 1500"))
    machine = {
        "device": "Xeon-8380",
        "exchange": "fcaffe",
        "cores": 2,
        "between": {"name": "between (measured)", "latency": 0.01, "bandwidth": 1e9},
        "measured": [{"net": "small", "ranks": 1, "batches": [4], "layers": LAYERS}],
    }
    (folder / "far.json").write_text(json.dumps(machine))
    job = start("--plan", "far.json", under=[MPIEXEC, "-n", "2", "sh", "-c", AS_HOSTS])
    assert job.wait() == 0, job.text[-2000:]
    assert "--plan picks --reduce doubling: " in job.text
    assert "for 2 workers and --reduce doubling: an iteration of " in job.text
    assert "Milliseconds of each of 7 iterations after the first:" in job.text
