import sys

import numpy as np
import pytest

from fcaffe.data import array_to_datum, datum_to_array, parse_datum
from fcaffe.data.images import Color, decode_image, encode_image, resize_image
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("values", [PIXELS, PIXELS.astype(np.float32) / 3])
@pytest.mark.parametrize("label", [7, None])
def test_values_come_back(values, label):
    datum = array_to_datum(values, label)
    assert (datum.channels, datum.height, datum.width, datum.label) == (2, 3, 4, label or 0)
    assert datum.HasField("label") == (label is not None) and bool(datum.data) == (values.dtype == np.uint8)
    back = datum_to_array(parse_datum(b"k", datum.SerializeToString()))
    assert back.dtype == values.dtype and np.array_equal(back, values)


def test_a_datum_needs_three_axes():
    with pytest.raises(DataError, match=r"\(4,\)"):
        array_to_datum(np.zeros(4, np.uint8))


@pytest.mark.parametrize(
    ("shape", "fields", "values"),
    [
        ((1, 2, 2), {"data": b"abc"}, "3 bytes of data"),
        ((1, 2, 2), {"float_data": [1.0]}, "1 float_data values"),
        ((-1, 2, 2), {"data": b"abcd" * 2}, "8 bytes of data"),
        ((0, 0, 0), {"label": 3}, "0 float_data values"),
    ],
)
def test_a_size_that_does_not_fit_names_the_record(shape, fields, values):
    datum = pb.Datum(channels=shape[0], height=shape[1], width=shape[2], **fields)
    sizes = " x ".join(map(str, shape))
    with pytest.raises(DataError, match=f'record "k.png" has {values}, but channels x height x width are {sizes}'):
        datum_to_array(datum, b"k.png")


def test_a_record_that_is_no_datum_is_named():
    with pytest.raises(DataError, match='record "key" is not a Datum'):
        parse_datum(b"key", b"\xff\xff\xff")


def test_without_opencv_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(DataError, match=r"pip install opencv-python-headless"):
        datum_to_array(pb.Datum(data=b"x", encoded=True), b"key")


class TestWithOpenCV:
    @pytest.fixture(autouse=True)
    def opencv(self):
        pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")

    def test_png_comes_back_in_every_colour_mode(self):
        colour = np.random.default_rng(1).integers(0, 256, (3, 5, 6), np.uint8)
        data = encode_image(colour, "png")
        assert np.array_equal(decode_image(data, "x"), colour)
        assert np.array_equal(decode_image(data, "x", Color.COLOR), colour)
        assert decode_image(data, "x", Color.GRAY).shape == (1, 5, 6)
        gray = encode_image(colour[:1], "png")
        assert np.array_equal(decode_image(gray, "x"), colour[:1])
        assert np.array_equal(decode_image(gray, "x", Color.COLOR), np.repeat(colour[:1], 3, axis=0))

    @pytest.mark.parametrize("data", [b"", b"no picture"])
    def test_what_cannot_be_decoded_is_named(self, data):
        with pytest.raises(DataError, match=f'record "k" cannot be decoded as a picture .{len(data)} bytes'):
            datum_to_array(pb.Datum(data=data, encoded=True), b"k")

    def test_an_unknown_format_is_refused(self):
        with pytest.raises(DataError, match="nonsense"):
            encode_image(np.zeros((3, 4, 4), np.uint8), "nonsense")

    def test_resizing_keeps_channels_first(self):
        assert resize_image(np.zeros((3, 5, 6), np.uint8), 7, 8).shape == (3, 7, 8)
        assert resize_image(np.zeros((1, 5, 6), np.uint8), 7, 8).shape == (1, 7, 8)
