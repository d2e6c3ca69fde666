"""Runs of the scripts in scripts/bench."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *words: str | Path, folder: Path = ROOT, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a script of scripts/, such as bench/cpu.py, in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "scripts" / script, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done
