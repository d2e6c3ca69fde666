"""Hosts of scripts/emulated_cluster, one core each, that last as long as a `with`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CLUSTER = Path(__file__).resolve().parents[1] / "emulated_cluster"
UNITS = {"mbit": 1e6, "gbit": 1e9}
BURST = 1 << 18  # bytes that links of up to 1 Gbit/s let through at once after they have idled
PAYLOAD = 1448 / 1514  # of the bytes of a frame


@contextlib.contextmanager
def hosts(number: int, rate: str) -> Iterator[list[str]]:
    """Words in front of a command that run it on all hosts. SIGTERM ends the program by SystemExit, and the hosts."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    words, name = [sys.executable, str(CLUSTER)], f"paper{os.getpid()}"
    subprocess.run([*words, "up", str(number), "--name", name, "--rate", rate, "--cores", "1"], check=True)
    try:
        yield [*words, "run", "--name", name, "--"]
    finally:
        subprocess.run([*words, "down", "--name", name], check=True)


def nominal(rate: str) -> float:
    """Bytes a second that a link of this rate carries, less the headers of Ethernet, IP and TCP, which count for it."""
    unit = next(unit for unit in UNITS if rate.endswith(unit))
    return PAYLOAD * float(rate.removesuffix(unit)) * UNITS[unit] / 8
