"""Damaged input: an error of fcaffe's that is one line, soon, and no memory for what is not there."""

import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe import input_files
from fcaffe.data import array_to_datum, datum_to_array, parse_datum
from fcaffe.data.hdf5 import read_hdf5_list, read_rows, shapes_of_rows
from fcaffe.data.image_list import read_image_list
from fcaffe.data.images import decode_image, encode_image, read_file
from fcaffe.data.mean import read_mean
from fcaffe.data.windows import read_window_file
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from tests.conftest import GOLDEN
from tests.soon import soon

INTEROP = GOLDEN / "interop"
MEMORY = 100 << 20  # bytes; hypothesis and the libraries take a part


def damaged(*whole: bytes) -> st.SearchStrategy[bytes]:
    """Random bytes, and whole files that are cut or have some bytes replaced."""

    @st.composite
    def draw(draw):
        content = bytearray(draw(st.sampled_from(whole)))
        for _ in range(draw(st.integers(0, 4))):
            place = draw(st.integers(0, len(content)))
            values = draw(st.binary(max_size=9) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 9 + b"\1"]))
            content[place : place + draw(st.integers(0, 9))] = values
        return bytes(content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content)

    return st.binary(max_size=200) | draw()


def check(read, *arguments):
    """Reads, or says what is wrong."""
    tracemalloc.start()
    try:
        with soon():
            read(*arguments)
    except DataError as problem:
        assert "\n" not in str(problem) and len(str(problem)) < 1000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEMORY


def check_file(folder, read, content, *arguments):
    path = folder / "file"
    path.write_bytes(content)
    check(read, str(path), *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damage")


many = settings(max_examples=150, deadline=None)  # a clock's would count other processes, too
RAW = array_to_datum(np.arange(60, dtype=np.uint8).reshape(3, 4, 5), 7).SerializeToString()
FLOATS = array_to_datum(np.ones((1, 2, 3), np.float32), 7).SerializeToString()


@many
@given(damaged(RAW, FLOATS, pb.Datum(channels=2**31 - 1, height=2**31 - 1, width=1, data=b"x").SerializeToString()))
def test_datum(value):
    check(lambda: datum_to_array(parse_datum(b"key", value), b"key"))


@pytest.mark.parametrize("sizes", [(1, -1, -2, 2), (2**31 - 1,) * 4, (0, 0, 0, 0), (1, 1, 1, 2**31 - 1)])
def test_a_mean_of_absurd_size(folder, sizes):
    blob = pb.BlobProto(num=sizes[0], channels=sizes[1], height=sizes[2], width=sizes[3], data=[0.0] * 4)
    (folder / "mean").write_bytes(blob.SerializeToString())
    with pytest.raises(DataError, match="mean"):
        read_mean(str(folder / "mean"))


@many
@given(content=damaged(b"a.png 1\nb c.png -2\n\n"))
def test_image_list(content, folder):
    check_file(folder, read_image_list, content)
    check_file(folder, read_hdf5_list, content)


@many
@given(
    content=damaged(b"# 0\na.png\n3 10 20\n2\n1 0.7 0 0 9 9\n0 0.1 2 3 4 5\n", b"# 0 a 3 1 1 9999999999999 1 1 0 0 0 0")
)
def test_window_file(content, folder):
    check_file(folder, read_window_file, content, "", 0.5, 0.5)


@many
@given(content=damaged((INTEROP / "part0.h5").read_bytes(), (INTEROP / "written.h5").read_bytes()))
def test_hdf5(content, folder):
    pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    for names in (["x", "y"], ["data", "label"]):
        check_file(folder, read_rows, content, names)


ENDLESS = {
    "list": (read_image_list,),
    "HDF5 list": (read_hdf5_list,),
    "window file": (read_window_file, "", 0.5, 0.5),
    "mean": (read_mean,),
    "picture": (read_file,),
    "HDF5 file": (shapes_of_rows, ["x"]),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_refused_at_once(what, tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "SILENT", 0.05)
    if what == "HDF5 file":
        pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    read, *arguments = ENDLESS[what]
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/zero"):
        with pytest.raises(DataError, match=r"it is a (pipe|device)") as caught:
            read(path, *arguments)
        assert path in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["list", "HDF5 list", "window file", "mean", "picture"])
def test_a_hole_of_a_terabyte_is_refused_at_once(what, tmp_path):
    read, *arguments = ENDLESS[what]
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    check(read, str(tmp_path / "huge"), *arguments)
    with pytest.raises(DataError, match=r"huge.*more than"):
        read(str(tmp_path / "huge"), *arguments)


class TestPictures:
    @pytest.fixture(autouse=True)
    def opencv(self):
        pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")

    @pytest.mark.parametrize("kind", ["png", "jpg", "bmp"])
    def test_picture(self, kind):
        pixels = np.arange(1200, dtype=np.uint8).reshape(3, 20, 20)

        @many
        @given(damaged(encode_image(pixels, kind)))
        def run(content):
            check(decode_image, content, "it")

        run()

    @pytest.mark.parametrize("size", [(2**31 - 1, 2**31 - 1), (2**20, 2**11), (0, 5)])
    def test_a_png_of_absurd_size(self, size):
        def chunk(kind, content):
            return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

        header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
        png = (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", zlib.compress(b"\0" * 100))
            + chunk(b"IEND", b"")
        )
        with pytest.raises(DataError, match="it cannot be decoded as a picture"):
            decode_image(png, "it")

    def test_a_jpeg_of_absurd_size(self):
        jpeg = bytearray(encode_image(np.zeros((3, 16, 16), np.uint8), "jpg"))
        place = jpeg.index(b"\xff\xc0") + 5
        jpeg[place : place + 4] = struct.pack(">HH", 65000, 65000)
        with pytest.raises(DataError, match="more pixels than OpenCV allows"):
            decode_image(bytes(jpeg), "it")
