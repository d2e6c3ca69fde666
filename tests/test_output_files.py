"""Files that appear whole or not at all, and what killed processes leave of them."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe import output_files
from fcaffe.errors import DataError, FcaffeError
from fcaffe.output_files import remove_leftovers, replacing, temporary_name

DEAD = 2**22 + 1  # no process can have this number


def leftover(target: str, process: int = DEAD, began: int = 1) -> str:
    return re.sub(r"-\d+-\d+\.tmp$", f"-{process}-{began}.tmp", temporary_name(target))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_failed_write_says_what_was_written(number: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with (
        pytest.raises(DataError, match=rf"^cannot write {path}: {os.strerror(number)}; .* for the trace \(an earlier"),
        replacing(path, "trace", DataError) as temporary,
    ):
        temporary.write_text("new")
        raise OSError(number, os.strerror(number))
    assert path.read_text() == "old" and names(tmp_path) == ["trace.json"]


def test_a_failed_write_is_no_matter_of_snapshots(tmp_path: Path) -> None:
    with pytest.raises(FcaffeError) as raised, replacing(tmp_path / "missing" / "picture.png", "picture") as temporary:
        temporary.write_text("new")
    assert type(raised.value) is FcaffeError and "for the picture" in str(raised.value)


def test_errors_of_our_own_pass_through(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ours"), replacing(tmp_path / "x") as temporary:
        temporary.write_text("new")
        raise TypeError("ours")
    assert not names(tmp_path)


def test_long_names(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127)
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == [path.name]


# Children write files of their own, one after the other, until they are killed; the last is killed but not yet waited
# for, one lives.
KILLS = """
import os, random, signal, sys, time
from fcaffe.output_files import remove_leftovers, replacing

def writer(nap):
    number = 0
    while True:
        with replacing(f"run_iter_{os.getpid()}_{number % 3}.caffemodel") as temporary:
            with open(temporary, "wb") as file:
                for _ in range(4):
                    file.write(bytes(20000))
                    file.flush()
                    if nap:
                        print("writing", flush=True)
                        time.sleep(nap)
        number += 1

def fork(nap):
    child = os.fork()
    if not child:
        writer(nap)
    return child

random.seed(3)
left = 0
for kill in range(12):
    child = fork(0)
    time.sleep(random.uniform(0.001, 0.03))
    os.kill(child, signal.SIGKILL)
    if kill < 11:
        os.wait()
    time.sleep(0.005)
left = sum(name.endswith(".tmp") for name in os.listdir())
living = fork(60)
sys.stdin.readline()
remove_leftovers("run_iter_")
kept = [name for name in os.listdir() if name.endswith(".tmp")]
os.kill(living, signal.SIGKILL)
assert left > 0, "no kill hit a write"
assert len(kept) == 1 and f"-{living}-" in kept[0], kept
os.waitpid(living, 0)
remove_leftovers("run_iter_")
assert not [name for name in os.listdir() if name.endswith(".tmp")]
"""


def test_what_killed_processes_left_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLS], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(300) == 0


@pytest.mark.skipif(
    not os.path.exists("/proc/sys/kernel/random/boot_id"), reason="Linux alone has a number of each boot"
)
def test_the_name_tells_boot_and_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another boot or container process numbers say nothing of the processes here."""
    found = set()
    for boot, container in (("1", "a"), ("2", "a"), ("1", "b")):
        with monkeypatch.context() as patch:
            patch.setattr(output_files, "open", lambda path, boot=boot: io.StringIO(boot), raising=False)
            patch.setattr(os, "readlink", lambda path, container=container: container)
            found.add(output_files._machine.__wrapped__())
    assert len(found) == 3


def test_only_what_is_surely_dead_is_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = temporary_name("run_iter_1.caffemodel")
    began = own.rpartition("-")[2].removesuffix(".tmp")
    elsewhere = re.sub(r"\.[0-9a-f]{8}-", ".00000000-", leftover("run_iter_1.caffemodel"))
    stays = [
        own,
        elsewhere,  # another machine's, or container's
        leftover("other_iter_1.caffemodel"),
        leftover("run_iter_1.caffemodel", os.getpid(), int(began)),
        ".run_iter_1.caffemodel.tmp",
        "run_iter_1.caffemodel",
    ]
    goes = [
        leftover("run_iter_1.caffemodel"),
        leftover("run_iter_2.solverstate.h5"),
        leftover("run_iter_1.caffemodel", os.getpid(), int(began) + 1),  # another process had our number
    ]
    for name in (*stays, *goes):
        (tmp_path / name).write_text("")
    remove_leftovers(str(tmp_path / "run_iter_"))
    assert names(tmp_path) == sorted(set(stays))
    said = capfd.readouterr().err
    assert "Removed unfinished files of processes that were killed: run_iter_1.caffemodel, " in said
    remove_leftovers(str(tmp_path / "missing" / "run"))
    assert not capfd.readouterr().err


def test_the_root_folder_is_no_file() -> None:
    with pytest.raises(FcaffeError, match="cannot write /"), replacing("/") as temporary:
        temporary.write_text("x")


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    """As devices do: whoever is root could replace /dev/null by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FcaffeError, match=r"cannot write .*pipe: No such device or"), replacing(pipe) as path:
        path.write_text("nobody reads")
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    with open(pipe, "wb"), replacing(pipe) as path:  # once it is open, somebody reads
        path.write_bytes(b"x" * 100_000)
    assert len(reader.communicate()[0]) == 100_000
    assert pipe.is_fifo() and [file.name for file in tmp_path.iterdir()] == ["pipe"]
    with replacing(os.devnull) as path:
        path.write_text("thrown away")
        assert path.parent != Path(os.devnull).parent
