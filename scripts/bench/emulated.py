"""Hosts of scripts/emulated_cluster that last as long as a `with`, and the speed of their links."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CLUSTER = Path(__file__).resolve().parents[1] / "emulated_cluster"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
BURST = 1 << 18  # bytes that links of up to 1 Gbit/s let through at once after they have idled
PAYLOAD = 1448 / 1514  # of the bytes of a frame


@contextlib.contextmanager
def hosts(number: int, rate: str, cores: int = 1) -> Iterator[list[str]]:
    """Words in front of mpiexec's arguments that run it on these hosts. SIGTERM ends the program, and the hosts."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    words, name = [sys.executable, str(CLUSTER)], f"bench{os.getpid()}"
    subprocess.run([*words, "up", str(number), "--name", name, "--rate", rate, "--cores", str(cores)], check=True)
    try:
        yield [*words, "run", "--name", name]
    finally:
        subprocess.run([*words, "down", "--name", name], check=True)


def bits_per_second(rate: str) -> float:
    """The bits per second of a rate in tc's notation, such as 100mbit."""
    unit = next(unit for unit in UNITS if rate.endswith(unit))
    return float(rate.removesuffix(unit)) * UNITS[unit]


def nominal(rate: str) -> float:
    """Bytes a second that a link of this rate carries, less the headers of Ethernet, IP and TCP, which count for it."""
    return PAYLOAD * bits_per_second(rate) / 8
