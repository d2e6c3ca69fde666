"""What ranks measure for plans, and that all of them do what `train --plan FILE` picks between hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.parallel.conftest import MPIEXEC, ROOT, Job, needs_mpi

AS_HOSTS = 'PMI_HOSTNAME=host$PMI_RANK exec "$0" "$@"'  # each rank takes itself for one on a host of its own
AS_TWO_HOSTS: list[object] = [MPIEXEC, "-n", "2", "sh", "-c", AS_HOSTS]
CALIBRATE = """
import sys
import fcaffe.plan.calibrate, fcaffe.tools.peaks, fcaffe.tools.step_bench
from fcaffe.cli import main
fcaffe.tools.peaks.SIDE, fcaffe.tools.peaks.FLOATS, fcaffe.plan.calibrate.FLOATS = 64, 1 << 16, 1 << 18
fcaffe.plan.calibrate.PASSES, fcaffe.tools.step_bench.TURN = 1, 0.005
sys.exit(main(["plan", "--calibrate", "--net", "net.prototxt", "--workers", "1,2", "--out", "here.json"]))
"""
LAYERS = {"ip": [[0.001, 0.002]], "loss": [[0.0005, 0.0005]]}


def write_machine(file: Path, latency: float, bandwidth: float, **more: float) -> None:
    """Two hosts, and a net large enough for several buckets, whose layers were measured."""
    net = file.parent / "net.prototxt"
    net.write_text(net.read_text().replace("num_output: 3", "num_output: 1500"))
    machine = {
        "device": "Xeon-8380",
        "exchange": "fcaffe",
        "cores": 2,
        "between": {"name": "between (measured)", "latency": latency, "bandwidth": bandwidth},
        "measured": [{"net": "small", "ranks": 1, "batches": [4], "layers": LAYERS}],
        **more,
    }
    file.write_text(json.dumps(machine))


@needs_mpi
def test_all_ranks_sum_as_rank_0_has_picked(start: Callable[..., Job], folder: Path) -> None:
    """Where messages take long, doubling, which needs fewer than the halving of `auto`. Ranks with other reductions, or
    buckets, would wait for one another, or get messages of other lengths."""
    write_machine(folder / "far.json", 0.01, 1e9)
    job = start("--plan", "far.json", under=AS_TWO_HOSTS)
    assert job.wait() == 0, job.text[-2000:]
    assert "--plan picks --reduce doubling: " in job.text
    assert "for 2 workers and --reduce doubling: an iteration of " in job.text
    assert "Milliseconds of each of 7 iterations after the first:" in job.text


@needs_mpi
def test_what_a_plan_sends_in_16_bits_can_be_said_without_it(start: Callable[..., Job], folder: Path) -> None:
    """Over a slow link, all but the first buckets of which could hide."""
    write_machine(folder / "slow.json", 1e-5, 1e6, add_bandwidth=1e10)
    job = start("--plan", "slow.json", "--compress", "bf16:first=auto", under=AS_TWO_HOSTS)
    assert job.wait() == 0, job.text[-2000:]
    found = re.search(r"--plan picks --compress (bf16:first=[0-9.]+)[^:]*: bf16 for \d of \d buckets, ", job.text)
    assert found, job.text[-2000:]
    model = folder / "small_iter_8.caffemodel"
    weights = model.read_bytes()
    model.unlink()
    job = start("--compress", found[1], under=AS_TWO_HOSTS)
    assert job.wait() == 0, job.text[-2000:]
    assert model.read_bytes() == weights


@needs_mpi
def test_calibration_between_hosts_finds_what_sums_take_of_the_cores(folder: Path) -> None:
    command = [MPIEXEC, "-n", "2", "sh", "-c", AS_HOSTS, sys.executable, "-c", CALIBRATE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    machine = json.loads((folder / "here.json").read_text())
    (net,) = machine["measured"]
    assert 0 < net["per_sum"] < 0.1, "to hand a sum over and to wait for it takes some of a core"
    assert "measured" in machine["between"]["name"] and machine["devices_per_node"] == 1
