from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from fcaffe.cli import gflags
from fcaffe.cli.commands import COMMANDS
from fcaffe.engines import find_onednn
from tests.cli.conftest import Run

OPTIONS = [
    click.Option(["--solver"]),
    click.Option(["--on-nan"]),
    click.Option(["--level"], type=int),
    click.Option(["--json"], is_flag=True),
    click.Option(["--note"]),
]


def read(words: Sequence[str]) -> list[str]:
    return gflags.spell(gflags.inline(words), OPTIONS)


@pytest.mark.parametrize("words", ["-solver x", "--solver x", "-solver=x", "--solver=x"])
def test_flags_in_all_spellings_before_and_after_the_verb(words: str, run: Run) -> None:
    assert read([*words.split(), "a"]) == ["--solver=x", "a"]
    for line in ([*words.split(), "train"], ["train", *words.split()], ["-stage", "train", *words.split(), "train"]):
        assert run(*line).fatal.startswith("x does not exist")


@pytest.mark.parametrize(
    ("words", "spelled"),
    [
        ("-level -1", "--level=-1"),
        ("-solver=a=b", "--solver=a=b"),
        ("-solver=", "--solver="),
        ("--on_nan stop --on-nan stop", "--on-nan=stop --on-nan=stop"),
        ("-json train", "--json train"),
        ("-json=true -json=0 -nojson", "--json"),
        ("--note x", "--note=x"),  # not the negation of a flag `te`
        ("a -- -solver x", "a -- -solver x"),
        ("- a --", "- a"),
        ("--flagfile= --fromenv= --tryfromenv= x", "x"),
        ("--undefok=a,b-c -a=1 --b_c --noa x", "x"),
    ],
)
def test_flags_as_gflags_reads_them(words: str, spelled: str) -> None:
    assert read(words.split()) == spelled.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-solver", "flag 'solver' is missing its argument"),
        ("-solver -json", "flag 'solver' is missing its argument"),
        ("-json=maybe", "Invalid value for '--json': 'maybe' is not a valid boolean."),
        ("-nosolver", "unknown command line flag 'nosolver'"),
        ("--x=1 -y", "unknown command line flag 'x'\nunknown command line flag 'y'"),
        ("--d --undefok=a", "unknown command line flag 'd'"),
        ("--lvel=1", "unknown command line flag 'lvel' (did you mean --level?)"),
    ],
)
@pytest.mark.parametrize("from_file", [False, True])
def test_wrong_flags(words: str, message: str, from_file: bool, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("\n".join(words.split()))
    with pytest.raises(click.UsageError) as raised:
        read([f"--flagfile={file}"] if from_file else words.split())
    assert raised.value.format_message().startswith(message)


def test_flags_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more").write_text("-level=3\n")
    Path("flags").write_text("# a comment\n\n  --solver=a b\n-json\n--flagfile=more\n-note=y\n")
    spelled = ["--solver=a b", "--json", "--level=3", "--note=y"]
    assert read(["--flagfile=flags", "train"]) == [*spelled, "train"]
    assert read(["-flagfile", "flags,more", "-level=4"]) == [*spelled, "--level=3", "--level=4"]


def test_a_file_of_flags_that_is_missing(run: Run) -> None:
    assert run("train --flagfile=none").fatal.startswith("none does not exist (looked for /")


def test_flags_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_solver", "a b")
    monkeypatch.setenv("FLAGS_json", "false")
    assert read(["--fromenv=solver,json"]) == ["--solver=a b"]
    assert read(["--tryfromenv=solver,level"]) == ["--solver=a b"]
    with pytest.raises(click.UsageError, match="FLAGS_level not found in environment; set it, or give --tryfromenv"):
        read(["--fromenv=level"])


def test_what_is_misspelt_has_a_suggestion(run: Run) -> None:
    assert run("trian").fatal == "Unknown action: trian (did you mean train?)"
    assert run("train -solvr=x").err == "ERROR: unknown command line flag 'solvr' (did you mean --solver?)\n"
    assert run("summary -phse=x").err == "ERROR: unknown command line flag 'phse' (did you mean --phase?)\n"
    assert run("summary x -phases=x").code == 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [("maxiter", "max_iter"), ("base_Ir", "base_lr")],
)
def test_fields_of_solvers_by_other_names(given: str, meant: str, run: Run, folder: Path) -> None:
    solver = folder / "solver.prototxt"
    solver.write_text(solver.read_text() + f"{given}: 1\n")
    assert run("train -solver solver.prototxt").fatal.endswith(f'named "{given}" (did you mean "{meant}"?)')


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("train a.prototxt", "train cannot use 'a.prototxt'; did you mean --solver a.prototxt? (fcaffe help train"),
        ("time a.prototxt", "time cannot use 'a.prototxt'; did you mean --model a.prototxt?"),
        ("train -solver x test", "train cannot use 'test'"),
        ("convert a b c d", "convert cannot use 'd' (fcaffe help convert shows its flags)"),
        ("-solver x", "no command is given: fcaffe <command> <flags>; see fcaffe help"),
    ],
)
def test_words_too_many_and_a_verb_that_is_missing(run: Run, words: str, error: str) -> None:
    code, out, err = run(words)
    assert (code, out) == (1, "") and err.startswith(f"ERROR: {error}") and err.count("\n") == 1


def test_an_unknown_verb_lists_the_known_ones(run: Run) -> None:
    result = run("foo")
    assert result.fatal == "Unknown action: foo"
    assert [line[0] for line in result.err.splitlines()] == ["E"] * (1 + len(COMMANDS)) + ["F"]
    assert result.messages[:-1] == ["Available caffe actions:", *(f"\t{name}" for name in sorted(COMMANDS))]


def test_an_unknown_flag(run: Run) -> None:
    assert run("train -bar 1") == (1, "", "ERROR: unknown command line flag 'bar'\n")
    assert run("summary net.prototxt --solver x") == (1, "", "ERROR: unknown command line flag 'solver'\n")


def test_a_value_that_is_no_number(run: Run) -> None:
    code, _, err = run("time -iterations many")
    assert code == 1
    assert re.fullmatch(r"ERROR: .*--iterations.*many.*\n", err)


def test_version_by_the_name_it_was_called_by(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("-version")
    engine = "oneDNN" if find_onednn() else "NumPy"
    assert code == 0 and re.fullmatch(rf"fcaffe version \d+\.\d+\.\d+, {engine} engine\n", out)
    assert run("version").out == out
    monkeypatch.setattr("sys.argv", ["/usr/bin/caffe"])
    assert re.fullmatch(r"caffe version 1\.0\.0 \(fcaffe [\d.]+\)\n", run("--version").out)


def test_every_flag_of_glog_is_accepted(run: Run) -> None:
    flags = (
        "-logtostderr -alsologtostderr=1 --log_dir= -stderrthreshold 0 -v=2 -vmodule x=1 -log_prefix "
        "-max_log_size 10 -nocolorlogtostderr -stop_logging_if_full_disk"
    )
    assert run(f"device_query {flags}").messages[0] == "Querying GPUs "


def test_minloglevel(run: Run) -> None:
    assert run("device_query -minloglevel=2").err == ""
    assert run("-minloglevel 9 train").fatal.startswith("Need a solver definition to train.")


def test_log_files(run: Run, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "folder"
    folder.mkdir()
    run("device_query", "--log", str(log), "-log_dir", str(folder))
    assert "] Querying GPUs \n" in log.read_text()
    link = folder / "fcaffe.INFO"
    assert re.fullmatch(r"fcaffe\.[^.]+\..+\.log\.INFO\.\d{8}-\d{6}\.\d+", os.readlink(link))
    assert link.read_text().startswith("Log file created at: ") and "] Querying GPUs \n" in link.read_text()
    run("device_query", "--log", str(log))
    assert log.read_text().count("Querying GPUs") == 2, "a log is appended to"


def test_log_files_that_cannot_be_written(run: Run) -> None:
    assert run("device_query --log missing/log").fatal.startswith("log file missing/log: cannot write it")
    assert run("device_query --log_dir missing").fatal.startswith("log_dir missing: cannot write there")
