"""docs/tutorial.md, run from its first line to its last."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("cv2", "onnx", "onnxruntime"):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[2]
PROGRAMS = ("fcaffe",)


def test_the_tutorial(tmp_path: Path) -> None:
    programs, work = tmp_path / "bin", tmp_path / "work"
    for folder in (programs, work):
        folder.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(
            f"#!{sys.executable}\nimport sys\nfrom fcaffe.__main__ import main\nsys.exit(main())\n"
        )
        (programs / name).chmod(0o755)
    page = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    said = ""
    for number, (language, text) in enumerate(blocks):
        script = work / f"block{number}"
        script.write_text(text.replace("--epochs 15", "--epochs 4"))
        done = subprocess.run(
            ["bash", "-e", script] if language == "bash" else [sys.executable, "-m", "fcaffe", "run", script],
            cwd=work,
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(programs), os.path.dirname(sys.executable), os.environ["PATH"]]),
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'fcaffe' / 'pycaffe' / 'top_level'}",
                "FCAFFE": str(ROOT),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        said += done.stdout + done.stderr
    best = float(re.findall(r"Best accuracy so far: ([\d.]+)", said)[-1])
    assert best > 0.6, "four epochs, and then a finetuning"
    counts = re.findall(r"(\d+) of (\d+) (?:are|held-out pictures are) right", said)
    assert len(counts) == 2 and counts[0] == counts[1], "fcaffe predict and the script agree"
    assert int(counts[0][0]) / int(counts[0][1]) == pytest.approx(best, abs=1e-5)
    assert "largest difference" in said and (work / "report.html").exists()
