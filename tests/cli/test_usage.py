"""Help of each command, and completion by the shells."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe.cli import _load
from fcaffe.cli.commands import COMMANDS
from fcaffe.cli.completion import SHELLS
from fcaffe.cli.flags import HEADINGS
from tests.cli.conftest import Run


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_names_flags_of_the_command(name: str, run: Run) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    example = out.rpartition("\nExample:\n")[2].split()
    assert example[:2] == ["fcaffe", name]
    flags = {opt for param in _load(name).params for opt in param.opts}
    assert {word.partition("=")[0] for word in example if word.startswith("--")} <= flags


@pytest.mark.parametrize("flag", ["-h", "--h", "-help", "--help", "-helpshort", "--helpfull", "--helpmatch=x", "help"])
def test_every_way_to_ask_for_help(flag: str, run: Run) -> None:
    for words in ([flag], ["train", flag], [flag, "train"]):
        if words == ["train", "help"]:
            continue
        code, out, err = run(*words)
        assert code == 0 and not err
        assert out.lower().startswith("usage: fcaffe " + ("train" if "train" in words else "<command>"))
        assert ("--on-nan" if "train" in words else "\n  device_query ") in out
    assert run("").out == run("--").out == run("help").out
    assert run("help nonsense").fatal == "Unknown action: nonsense"


def test_flags_are_in_groups_and_in_the_order_of_use(run: Run) -> None:
    out = run("train --help").out
    found = [line.removesuffix(":") for line in out.splitlines() if line.removesuffix(":") in HEADINGS]
    assert found == HEADINGS
    flags = [line.split()[0].rstrip(",") for line in out.splitlines() if line.startswith("  --")]
    assert flags[:3] == ["--solver", "--weights", "--snapshot"] and flags[-1] == "--version"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fcaffe tr", ["plain,train"]),
        ("fcaffe upgrade_s", ["plain,upgrade_solver_proto_text"]),
        ("fcaffe train --sol", ["plain,--solver"]),
        ("fcaffe train --solver s", ["file,s"]),
        ("fcaffe train --on-nan c", ["plain,continue"]),
        ("fcaffe train --reduce tr", ["plain,tree"]),
        ("fcaffe summary n", ["file,n"]),
        ("fcaffe lmdb sh", ["plain,shuffle"]),
        ("fcaffe lmdb info x", ["file,x"]),
        ("fcaffe completion z", ["plain,zsh"]),
        ("caffe tes", ["plain,test"]),
    ],
)
def test_how_a_line_goes_on(line: str, expected: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    program = line.split()[0]
    monkeypatch.setattr("sys.argv", [f"/usr/bin/{program}"])
    monkeypatch.setenv(f"_{program.upper()}_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert run().out.splitlines() == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_what_is_printed(shell: str, tmp_path: Path, run: Run) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    script = tmp_path / "completion"
    script.write_text(run(f"completion {shell}").out)
    program = tmp_path / "fcaffe"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fcaffe "$@"\n')
    program.chmod(0o755)
    asked = {
        "bash": "source completion; COMP_WORDS=(fcaffe tr); COMP_CWORD=1; "
        "_fcaffe_completion fcaffe; echo ${COMPREPLY[@]}",
        "zsh": "compdef() { }; compadd() { echo $@ }; _describe() { print -l -- ${(P)3}; }; source ./completion; "
        "words=(fcaffe tr); CURRENT=2; _fcaffe_completion",
        "fish": "source completion; complete -C 'fcaffe tr'",
    }[shell]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "train" in done.stdout and "test" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("classify a.png", "OUT"),
        ("convert", "IN"),
        ("detect in.csv", "OUT"),
        ("draw_net net.prototxt", "OUT"),
        ("merge-bn a b c", "NEW_WEIGHTS"),
        ("report train.log", "LOG..."),
        ("solver", "SOLVER"),
        ("summary", "NET"),
    ],
)
def test_a_missing_argument_is_named(words: str, missing: str, run: Run) -> None:
    result, command = run(words), words.split()[0]
    assert result.code == 1
    assert result.err.startswith(f"ERROR: {command} needs {missing}, such as: fcaffe {command} ")
