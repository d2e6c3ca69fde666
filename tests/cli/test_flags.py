from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from fcaffe.cli import gflags
from fcaffe.cli.commands import COMMANDS
from tests.cli.conftest import Result

Run = Callable[..., Result]

OPTIONS = {
    "solver": click.Option(["--solver"]),
    "on_nan": click.Option(["--on-nan"]),
    "level": click.Option(["--level"], type=int),
    "json": click.Option(["--json"], is_flag=True),
    "note": click.Option(["--note"]),
    "plan": click.Option(["--plan"], is_flag=False, flag_value=""),
}


@pytest.mark.parametrize("words", ["-solver x", "--solver x", "-solver=x", "--solver=x"])
def test_flags_in_all_spellings_before_and_after_the_verb(words: str) -> None:
    assert gflags.split([*words.split(), "train"], OPTIONS) == (["--solver=x"], ["train"])
    assert gflags.split(["train", *words.split()], OPTIONS) == (["--solver=x"], ["train"])


@pytest.mark.parametrize(
    ("words", "flags", "others"),
    [
        ("-level -1", ["--level=-1"], []),
        ("-solver=a=b", ["--solver=a=b"], []),
        ("-solver=", ["--solver="], []),
        ("--on_nan stop --on-nan stop", ["--on-nan=stop", "--on-nan=stop"], []),
        ("-json train", ["--json"], ["train"]),
        ("-json=true -json=0 -nojson", ["--json"], []),
        ("--note x", ["--note=x"], []),  # not the negation of a flag `te`
        ("--plan -solver x", ["--plan=", "--solver=x"], []),
        ("--plan x -json", ["--plan=x", "--json"], []),
        ("-json --plan", ["--json", "--plan="], []),
        ("--plan=x train", ["--plan=x"], ["train"]),
        ("a -- -solver x", [], ["a", "-solver", "x"]),
        ("- a", [], ["-", "a"]),
    ],
)
def test_flags_as_gflags_reads_them(words: str, flags: list[str], others: list[str]) -> None:
    assert gflags.split(words.split(), OPTIONS) == (flags, others)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-solver", "flag 'solver' is missing its argument"),
        ("-json=maybe", "illegal value 'maybe' specified for bool flag 'json'"),
        ("-nosolver", "unknown command line flag 'nosolver'"),
        ("--x=1 -y", "unknown command line flag 'x'\nunknown command line flag 'y'"),
    ],
)
def test_wrong_flags(words: str, message: str) -> None:
    with pytest.raises(gflags.FlagError) as raised:
        gflags.split(words.split(), OPTIONS)
    assert str(raised.value) == message


def test_flags_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more").write_text("-level=3\n")
    Path("flags").write_text(
        "# a comment\n\n  --solver=a b\n-json\n--flagfile=more\nother_* caffe\n--note=x\nfcaf*\n-note=y\n"
    )
    made = ["--solver=a b", "--json", "--level=3", "--note=y"]
    assert gflags.split(["--flagfile=flags", "train"], OPTIONS) == (made, ["train"])
    assert gflags.split(["-flagfile", "flags,more", "-level=4"], OPTIONS)[0] == [*made, "--level=3", "--level=4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("--flagfile=flags", "flag file flags reads itself; take --flagfile=flags out of it (flags:1)"),
        ("\n--solver", "flag 'solver' is missing its argument (flags:2)"),
        ("--json=maybe", "illegal value 'maybe' specified for bool flag 'json' (flags:1)"),
        ("--lvel=1", "unknown command line flag 'lvel' (did you mean --level?)"),
    ],
)
def test_files_of_flags_that_are_wrong(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flags").write_text(content)
    with pytest.raises(gflags.FlagError) as raised:
        gflags.split(["--flagfile=flags"], OPTIONS)
    assert str(raised.value) == message


def test_a_file_of_flags_that_is_missing(run: Run) -> None:
    assert run("train --flagfile=none").fatal.startswith("none does not exist (looked for /")


def test_flags_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_solver", "a b")
    monkeypatch.setenv("FLAGS_json", "false")
    assert gflags.split(["--fromenv=solver,json"], OPTIONS)[0] == ["--solver=a b"]
    assert gflags.split(["--tryfromenv=solver,level"], OPTIONS)[0] == ["--solver=a b"]
    with pytest.raises(gflags.FlagError, match="FLAGS_level not found in environment; set it, or give --tryfromenv"):
        gflags.split(["--fromenv=level"], OPTIONS)
    with pytest.raises(gflags.FlagError, match="would look into the environment for ever"):
        gflags.split(["--fromenv=tryfromenv"], OPTIONS)


def test_flags_that_may_be_unknown() -> None:
    assert gflags.split(["--undefok=a,b-c", "-a=1", "--b_c", "--noa", "x"], OPTIONS) == ([], ["x"])
    with pytest.raises(gflags.FlagError, match=r"^unknown command line flag 'd'$"):
        gflags.split(["--d", "--undefok=a"], OPTIONS)


def test_what_is_misspelt_has_a_suggestion(run: Run) -> None:
    assert run("trian").fatal == "Unknown action: trian (did you mean train?)"
    assert run("train -solvr=x").err == "ERROR: unknown command line flag 'solvr' (did you mean --solver?)\n"
    assert run("summary -phse=x").err == "ERROR: unknown command line flag 'phse' (did you mean --phase?)\n"
    assert run("summary x -phases=x").code == 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [("learning_rate", "base_lr"), ("LR", "base_lr"), ("maxiter", "max_iter"), ("seed", "random_seed")],
)
def test_fields_of_solvers_by_other_names(given: str, meant: str, run: Run, folder: Path) -> None:
    solver = folder / "solver.prototxt"
    solver.write_text(solver.read_text() + f"{given}: 1\n")
    assert run("train -solver solver.prototxt").fatal.endswith(f'named "{given}" (did you mean "{meant}"?)')


@pytest.mark.parametrize("words", ["", "train test", "foo bar", "-solver x"])
def test_usage_without_a_verb_or_with_more_than_one(run: Run, words: str) -> None:
    code, out, err = run(*words.split(), "--") if words else run("--")
    assert (code, err) == (0, "")
    assert "usage: fcaffe <command>" in out
    assert all(f"\n  {verb} " in out for verb in ("train", "test", "time", "device_query", "summary", "solver"))


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


@pytest.mark.parametrize("flag", ["--help", "-help", "-helpshort", "--helpfull", "--helpmatch=x"])
def test_help(run: Run, flag: str) -> None:
    code, out, _ = run(flag)
    assert code == 0 and "usage: fcaffe <command>" in out
    code, out, _ = run("train", flag)
    assert code == 0 and "--on-nan" in out


def test_version_by_the_name_it_was_called_by(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("-version")
    assert code == 0 and re.fullmatch(r"fcaffe version \d+\.\d+\.\d+\n", out)
    monkeypatch.setattr("sys.argv", ["/usr/bin/caffe"])
    assert re.fullmatch(r"caffe version 1\.0\.0 \(fcaffe [\d.]+\)\n", run("--version").out)


def test_every_flag_of_glog_is_accepted(run: Run) -> None:
    flags = (
        "-logtostderr -alsologtostderr=1 --log_dir= -stderrthreshold 0 -v=2 -vmodule x=1 -log_prefix "
        "-max_log_size 10 -nocolorlogtostderr -stop_logging_if_full_disk"
    )
    assert run(f"device_query {flags}").messages == ["Querying GPUs "]


def test_minloglevel(run: Run) -> None:
    assert run("device_query -minloglevel=1").err == ""
    assert run("-minloglevel 9 train").fatal.startswith("Need a solver definition to train.")


def test_log_files(run: Run, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "folder"
    folder.mkdir()
    run("device_query", "--log", str(log), "-log_dir", str(folder))
    assert log.read_text().endswith("] Querying GPUs \n")
    link = folder / "fcaffe.INFO"
    assert re.fullmatch(r"fcaffe\.[^.]+\..+\.log\.INFO\.\d{8}-\d{6}\.\d+", os.readlink(link))
    assert link.read_text().startswith("Log file created at: ") and link.read_text().endswith("] Querying GPUs \n")
    run("device_query", "--log", str(log))
    assert len(log.read_text().splitlines()) == 2, "a log is appended to"


def test_log_files_that_cannot_be_written(run: Run) -> None:
    assert run("device_query --log missing/log").fatal.startswith("log file missing/log: cannot write it")
    assert run("device_query --log_dir missing").fatal.startswith("log_dir missing: cannot write there")


def test_the_output_may_be_cut_off(folder: Path) -> None:
    """As in `fcaffe summary net.prototxt | head -1`, and with a log that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    for words in (["summary", "net.prototxt"], ["device_query"]):
        command = [sys.executable, "-m", "fcaffe", *words]
        process = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        assert "Traceback" not in process.stderr and "ignored" not in process.stderr
        assert process.returncode == (141 if words[0] == "summary" else 0)
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=write, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "")
    os.close(write)
