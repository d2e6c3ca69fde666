"""Help of each command."""

from __future__ import annotations

import pytest

from fcaffe.cli import _load
from fcaffe.cli.commands import COMMANDS
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
