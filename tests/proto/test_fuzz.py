"""Whatever is in a file, reading it ends soon, in bounded memory, with a result or an error of one line."""

from __future__ import annotations

import re
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fcaffe import log
from fcaffe.data.mean import read_mean
from fcaffe.errors import FcaffeError, ProtoError
from fcaffe.model_files import read_model, write_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, read_solver
from fcaffe.proto.wire import key, varint
from fcaffe.solvers.snapshot.files import read_state
from fcaffe.tools.numpy_files import load_numpy
from tests.soon import soon

pytest.importorskip("h5py")

INTEROP = Path(__file__).parents[1] / "golden/interop"
MEGABYTES = 64

Reader = Callable[[str], Any]
READERS: dict[str, Reader] = {
    "modeld_iter_8.caffemodel": read_model,
    "v1.caffemodel": read_model,
    "modelh_iter_8.caffemodel.h5": read_model,
    "model_iter_8.solverstate": read_state,
    "modelh_iter_8.solverstate.h5": read_state,
    "mean_gray.binaryproto": read_mean,
    "net.prototxt": read_net,
    "old_v0_train.prototxt": read_net,
    "old_v1_train.prototxt": read_net,
    "solver_model.prototxt": read_solver,
}


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    log.set_show(lambda line: None)
    yield
    log.set_show(None)


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Reader, bytes]]:
    """The golden files, and forms that fcaffe alone writes; by name, with what reads them."""
    folder = tmp_path_factory.mktemp("fuzz")
    model = read_model(INTEROP / "modeld_iter_8.caffemodel")
    for ending in (".npz", ".h5", ".safetensors"):
        write_model(folder / f"x{ending}", model)
    write_model(folder / "nvidia.caffemodel", model, nvidia=True)
    found: dict[str, tuple[Reader, bytes]] = {path.name: (read_model, path.read_bytes()) for path in folder.iterdir()}
    np.save(folder / "x.npy", read_mean(str(INTEROP / "mean_gray.binaryproto")))
    found["x.npy"] = (lambda path: load_numpy(path, "an array"), (folder / "x.npy").read_bytes())
    return found | {name: (reader, (INTEROP / name).read_bytes()) for name, reader in READERS.items()}


def check(read: Reader, content: bytes) -> bool:
    """Whether it could be read; an error must name the file, fit on one line, and come soon."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            with soon():
                read(file.name)
        except FcaffeError as problem:
            assert file.name in str(problem) and "\n" not in str(problem) and len(str(problem)) < 1000
            return False
    return True


FUZZ = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.data())
def test_damaged_files(contents: dict[str, tuple[Reader, bytes]], data: st.DataObject) -> None:
    read, whole = contents[data.draw(st.sampled_from(sorted(contents)))]
    content = bytearray(whole)
    places = st.integers(0, len(content) - 1)
    for where, value in data.draw(st.lists(st.tuples(places, st.sampled_from([0, 1, 127, 128, 255])), max_size=8)):
        content[where] = value
    for where, length, to in data.draw(st.lists(st.tuples(places, st.integers(1, 40), places), max_size=2)):
        content[to:to] = whole[where : where + length]
    check(read, bytes(content[: data.draw(places | st.just(len(content)))]))


@FUZZ
@given(content=st.binary(max_size=300), start=st.sampled_from([b"", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04", b"\xa2\x06"]))
def test_random_bytes(content: bytes, start: bytes) -> None:
    for read in (read_model, read_state, read_mean, read_net, read_solver):
        check(read, start + content)


# --- absurd sizes -----------------------------------------------------------------------------------------------------


def field(number: int, content: bytes, length: int | None = None) -> bytes:
    return key(number) + varint(len(content) if length is None else length) + content


def shaped(*dims: int) -> bytes:
    return field(7, pb.BlobShape(dim=dims).SerializeToString())


DATA = field(5, b"\0\0\x80\x3f" * 8)
BLOBS = {
    "a billion elements": shaped(10**9) + DATA,
    "a billion elements and none": shaped(10**9),
    "2^40": shaped(1 << 40) + DATA,
    "a product beyond 64 bits": shaped(*[1 << 40] * 32) + DATA,
    "too many axes": shaped(*[1 << 40] * 10000) + DATA,
    "negative": shaped(-1, -8) + DATA,
    "four numbers": b"\x08\xff\xff\xff\xff\x07\x10\xff\xff\xff\xff\x07" + DATA,
    "a length beyond the end": shaped(8) + field(5, b"\0" * 32, 1 << 31),
    "a length beyond 64 bits": shaped(8) + b"\x2a" + b"\xff" * 12,
    "half a number": shaped(8) + field(5, b"\0" * 31),
    "more numbers than in the shape": shaped(4) + DATA,
    "raw data of no type": shaped(8) + field(12, b"\0" * 32),
    "raw data of another type": shaped(8) + b"\x50\x03" + field(12, b"\0" * 32),
    "nested": field(7, field(1, field(1, field(1, field(1, b""))))) + shaped(9) + DATA,
}
WRAPPED: dict[str, tuple[Reader, Callable[[bytes], bytes]]] = {
    "layer": (read_model, lambda blob: field(100, field(1, b"a") + field(7, blob))),
    "V1 layer": (read_model, lambda blob: field(2, field(4, b"a") + field(6, blob))),
    "V0 layer": (read_model, lambda blob: field(2, field(1, field(1, b"a") + field(2, b"relu") + field(50, blob)))),
    "state": (read_state, lambda blob: b"\x08\x01" + field(2, b"net") + field(3, blob)),
    "mean": (read_mean, lambda blob: blob),
}


@pytest.mark.parametrize("where", WRAPPED)
@pytest.mark.parametrize("what", BLOBS)
def test_absurd_blobs(where: str, what: str) -> None:
    read, wrap = WRAPPED[where]
    tracemalloc.start()
    try:
        assert not check(read, wrap(BLOBS[what]))
        assert tracemalloc.get_traced_memory()[1] < MEGABYTES << 20
    finally:
        tracemalloc.stop()


def test_deep_nesting() -> None:
    content = b""
    for _ in range(20000):
        content = field(1, content)
    for number in (2, 100):
        assert not check(read_model, field(number, field(1, b"a") + content))


DEEP = 100000
TEXTS = {
    "braces": "layer {" * DEEP,
    "lists": "layer: [" * DEEP,
    "unclosed": "layer { name: 'a' " * 2000,
    "unknown": "a { " * DEEP,
    "closing": "}" * DEEP,
    "a long number": "force_backward: " + "9" * 4000,
    "a long string": 'name: "' + "a" * 1000000,
    "a long name": "a" * 1000000 + ": 1",
    "quotes": "'" * DEEP,
    "escapes": 'name: "' + "\\" * 99999,
    "colons": "name" + ":" * DEEP,
    "comment in the way": "#" * DEEP + "\nlayer { #" + "}" * DEEP,
}


@pytest.mark.parametrize("what", TEXTS)
def test_absurd_texts(what: str) -> None:
    for message_class in (pb.NetParameter, pb.SolverParameter):
        with soon(), pytest.raises(ProtoError, match=r"^x:\d+:\d+: [^\n]{1,400}$"):
            parse_text(TEXTS[what], message_class, "x")


def test_bytes_that_are_no_text_are_told_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'name: "a"  # \xff\nlayer { pooling_param { pool: \xff } }')
    with pytest.raises(ProtoError, match=re.escape(f"{path}:2:")):
        read_net(path)
