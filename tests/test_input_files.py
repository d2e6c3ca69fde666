"""Whatever a user names as input, reading it comes to an end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcaffe import input_files
from fcaffe.data.hdf5 import read_hdf5_list, read_rows
from fcaffe.data.image_list import read_image_list
from fcaffe.data.images import read_file
from fcaffe.data.mean import read_mean
from fcaffe.data.raw_images import read_idx
from fcaffe.data.windows import read_window_file
from fcaffe.errors import FcaffeError
from fcaffe.jobs.hosts import read_hostfile
from fcaffe.model_files import hdf5, npz, read_model
from fcaffe.model_files.arrays import read_arrays
from fcaffe.onnx.convert import convert
from fcaffe.proto import read_net, read_solver, text
from fcaffe.solvers.snapshot.files import read_state

READERS: dict[str, Callable[[str], Any]] = {
    "net": read_net,
    "solver": read_solver,
    "model": read_model,
    "state": read_state,
    "mean": read_mean,
    "image list": read_image_list,
    "list of HDF5 files": read_hdf5_list,
    "window file": lambda path: read_window_file(path, "", 0.5, 0.5),
    "picture": read_file,
    "idx": read_idx,
    "hostfile": read_hostfile,
    "convert": lambda path: convert(path, f"{path}.npy"),
    "HDF5 model": lambda path: read_arrays(hdf5.contents, path),
    "rows": lambda path: read_rows(path, ["data"]),
    "npz": lambda path: read_arrays(npz.contents, path),
}


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return str(path)


def writer(path: str, content: bytes, wait: float = 0.0) -> threading.Thread:
    """A thread that opens the pipe, waits, and writes."""

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            time.sleep(wait)
            for start in range(0, len(content), 1000):
                file.write(content[start : start + 1000])

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.parametrize("what", READERS)
def test_no_reader_waits_for_ever(what: str, fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "SILENT", 0.05)
    if what in ("HDF5 model", "rows"):
        pytest.importorskip("h5py")
    for path, message in ((fifo, "it is a pipe"), ("/dev/zero", "it is a device|it is a pipe or a device")):
        with pytest.raises(FcaffeError, match=message) as problem:
            READERS[what](path)
        assert path in str(problem.value) and "\n" not in str(problem.value)


def test_a_pipe_that_somebody_writes_to_is_read_whole(fifo: str) -> None:
    content = os.urandom(300_000)
    thread = writer(fifo, content, wait=0.2)
    assert input_files.read_input(fifo) == content
    thread.join()
    thread = writer(fifo, b'layer { name: "a" type: "Input" }')
    assert [layer.name for layer in read_net(fifo).layer] == ["a"], "what has been read is not there again"
    thread.join()


def test_who_looks_into_a_pipe_leaves_it_full(fifo: str, golden: Path) -> None:
    thread = writer(fifo, (golden / "interop/model_iter_8.caffemodel").read_bytes())
    assert len(read_model(fifo).layers) == 11, "a reader that first looks what it is"
    thread.join()


def test_a_writer_that_writes_nothing(fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "SILENT", 0.2)
    thread = writer(fifo, b"", wait=0.6)
    with pytest.raises(FcaffeError, match="it is a pipe that nobody writes to"):
        read_net(fifo)
    thread.join()


def test_too_much(tmp_path: Path, fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.prototxt"
    with open(path, "wb") as file:
        file.truncate(50 << 20)
    with pytest.raises(FcaffeError, match=r"net\.prototxt: it has more than 8388608 bytes"):
        read_net(path)
    monkeypatch.setattr(text, "LARGEST", 1000)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # so that the writer does not find the pipe closed
    thread = writer(fifo, b" " * 5000)
    with pytest.raises(FcaffeError, match="pipe: it has more than 1000 bytes"):
        read_net(fifo)
    thread.join()
    os.close(reading)
