"""Hosts of scripts/emulated_cluster, one core each, that last as long as a `with`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CLUSTER = Path(__file__).resolve().parents[1] / "emulated_cluster"


@contextlib.contextmanager
def hosts(number: int, rate: str) -> Iterator[list[str]]:
    """Words in front of a command that run it on all hosts."""
    words, name = [sys.executable, str(CLUSTER)], f"paper{os.getpid()}"
    subprocess.run([*words, "up", str(number), "--name", name, "--rate", rate, "--cores", "1"], check=True)
    try:
        yield [*words, "run", "--name", name, "--"]
    finally:
        subprocess.run([*words, "down", "--name", name], check=True)
