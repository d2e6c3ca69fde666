"""pycaffe's io: blobs and records as arrays, pictures made ready for a net."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fcaffe.data.images import encode_image
from fcaffe.errors import ArgumentError, DataError, UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.pycaffe import io

PICTURE = np.array([[0, 5, 1, 2], [7, 3, 8, 6], [4, 9, 2, 5]], np.float32)

# PICTURE as 2 x 5 pixels by order, which scikit-image 0.26 gives (resize of the values scaled to [0, 1], with
# mode="constant" and anti_aliasing=False) and SciPy 1.17 (zoom).
AREAS = {
    0: [[0, 5, 1, 1, 2], [4, 9, 2, 2, 5]],
    1: [[1.575, 3.675, 3.625, 2.825, 2.7], [4.275, 6.675, 5.5, 4.025, 4.725]],
    2: [[1.17979, 4.27521, 3.94286, 2.61015, 2.82617], [4.64681, 8.50627, 6.02648, 3.86272, 5.56470]],
    3: [[1.30848, 4.10643, 3.91280, 2.88629, 2.85616], [4.77594, 8.52056, 5.91658, 4.26424, 5.63151]],
    4: [[1.27174, 4.11237, 3.87846, 2.89179, 2.85208], [4.81188, 8.76236, 5.82181, 4.32085, 5.71838]],
    5: [[1.27621, 4.06683, 3.83695, 2.94413, 2.84282], [4.84009, 8.83890, 5.73770, 4.42574, 5.74553]],
}
POINTS = {
    0: [[0, 5, 1, 1, 2], [4, 9, 2, 2, 5]],
    1: [[0, 3.75, 3, 1.25, 2], [4, 7.75, 5.5, 2.75, 5]],
    2: [[0, 4.21429, 3.4, 0.78571, 2], [4, 8.51786, 5.7, 1.98214, 5]],
    3: [[0, 4.02187, 3.5, 0.79063, 2], [4, 8.33125, 5.75, 2.075, 5]],
    4: [[0, 4.03361, 3.58824, 0.71639, 2], [4, 8.38207, 5.79412, 1.99293, 5]],
    5: [[0, 3.99999, 3.625, 0.70704, 2], [4, 8.35348, 5.8125, 2.00003, 5]],
}


def test_blobs_are_arrays_of_their_shape() -> None:
    array, diff = np.arange(6.0).reshape(2, 3), np.arange(6.0, 12).reshape(2, 3)
    blob = io.array_to_blobproto(array, diff)
    assert list(blob.shape.dim) == [2, 3] and blob.data[:] == list(range(6))
    assert np.array_equal(io.blobproto_to_array(blob), array)
    assert np.array_equal(io.blobproto_to_array(blob, return_diff=True), diff)
    assert io.blobproto_to_array(blob).dtype == float
    old = pb.BlobProto(num=1, channels=1, height=2, width=3, data=range(6))
    assert io.blobproto_to_array(old).shape == (1, 1, 2, 3)
    assert io.blobproto_to_array(pb.BlobProto(data=[123])) == 123
    assert io.blobproto_to_array(pb.BlobProto(double_data=[1 / 3])) == 1 / 3


@pytest.mark.parametrize(
    ("blob", "diff"),
    [(pb.BlobProto(data=[1, 2]), False), (pb.BlobProto(), False), (pb.BlobProto(data=[1]), True)],
)
def test_blobs_of_another_shape_are_refused(blob: pb.BlobProto, diff: bool) -> None:
    with pytest.raises(ValueError, match="blobproto_to_array"):
        io.blobproto_to_array(blob, diff)


def test_vectors_of_blobs() -> None:
    arrays = [np.arange(3.0), np.ones((1, 2, 2)), np.array(7.0)]
    text = io.arraylist_to_blobprotovector_str(arrays)
    assert isinstance(text, bytes)
    for array, back in zip(arrays, io.blobprotovector_str_to_arraylist(text), strict=True):
        assert array.shape == back.shape and np.array_equal(array, back)


def test_records_keep_bytes_as_bytes() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    datum = io.array_to_datum(pixels, label=4)
    assert (datum.data, datum.label, list(datum.float_data)) == (pixels.tobytes(), 4, [])
    assert io.datum_to_array(datum).dtype == np.uint8
    assert np.array_equal(io.datum_to_array(datum), pixels)
    floats = io.array_to_datum(pixels / 2)
    assert not floats.HasField("label") and floats.data == b""
    assert io.datum_to_array(floats).dtype == float and np.array_equal(io.datum_to_array(floats), pixels / 2)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Incorrect array shape\..*\(2, 2\)"):
        io.array_to_datum(np.ones((2, 2)))
    with pytest.raises(ValueError, match="damaged"):
        io.datum_to_array(pb.Datum(channels=1, height=2, width=2, data=b"123"))
    with pytest.raises(ValueError, match="encoded picture"):
        io.datum_to_array(pb.Datum(channels=1, height=2, width=2, data=b"1234", encoded=True))


@pytest.mark.parametrize("order", range(6))
def test_resizing_gives_the_values_of_the_libraries_that_caffe_asks(order: int) -> None:
    if order != 1:
        pytest.importorskip("scipy", reason="splines of this order need SciPy")
    gray = io.resize_image(PICTURE[:, :, np.newaxis], (2, 5), order)
    assert gray.shape == (2, 5, 1) and gray.dtype == np.float32
    assert np.allclose(gray[:, :, 0], AREAS[order], atol=1e-5)
    colour = io.resize_image(np.stack([PICTURE, PICTURE, PICTURE], 2), (2, 5), order)
    assert np.allclose(colour, np.array(AREAS[order])[:, :, np.newaxis], atol=1e-5)
    four = io.resize_image(np.stack([PICTURE] * 4, 2), (2, 5), interp_order=order)
    assert np.allclose(four, np.array(POINTS[order])[:, :, np.newaxis], atol=1e-5)


def test_oversample_takes_corners_centre_and_their_mirror_images() -> None:
    picture = np.arange(5 * 7 * 2, dtype=np.float32).reshape(5, 7, 2)
    crops = io.oversample([picture, -picture], (2, 4))
    assert crops.shape == (20, 2, 4, 2) and crops.dtype == np.float32
    for number, (y, x) in enumerate([(0, 0), (0, 3), (3, 0), (3, 3), (1, 1)]):
        crop = picture[y : y + 2, x : x + 4]
        assert np.array_equal(crops[number], crop) and np.array_equal(crops[number + 5], crop[:, ::-1])
    assert np.array_equal(crops[10:], -crops[:10])
    with pytest.raises(ArgumentError, match="crops of 6 x 4 do not fit into pictures of 5 x 7"):
        io.oversample([picture], (6, 4))


def transformer() -> io.Transformer:
    made = io.Transformer({"data": (10, 3, 4, 5)})
    made.set_transpose("data", (2, 0, 1))
    made.set_channel_swap("data", (2, 1, 0))
    made.set_raw_scale("data", 255)
    made.set_mean("data", np.array([1, 2, 3]))
    made.set_input_scale("data", 0.5)
    return made


def test_preprocess_does_its_steps_in_order_and_deprocess_undoes_them() -> None:
    picture = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    before = picture.copy()
    made = transformer().preprocess("data", picture)
    expected = (255 * picture.transpose(2, 0, 1)[::-1] - np.array([1, 2, 3]).reshape(3, 1, 1)) * 0.5
    assert made.dtype == np.float32 and np.allclose(made, expected, rtol=1e-6)
    assert np.array_equal(picture, before)
    assert np.allclose(transformer().deprocess("data", made[np.newaxis]), picture, atol=1e-6)


def test_preprocess_resizes_to_the_inputs_size() -> None:
    made = io.Transformer({"data": [1, 3, 2, 5]})
    assert np.allclose(made.preprocess("data", np.stack([PICTURE] * 3, 2))[:, :, 1], AREAS[1], atol=1e-5)


def test_means_of_every_shape() -> None:
    made = io.Transformer({"data": (1, 3, 4, 5), "gray": (1, 1, 2, 5)})
    made.set_mean("data", np.arange(3))
    assert made.mean["data"].shape == (3, 1, 1)
    full = np.arange(60.0).reshape(3, 4, 5)
    made.set_mean("data", full)
    assert made.mean["data"] is full
    made.set_mean("data", np.stack([PICTURE] * 3))
    assert np.allclose(made.mean["data"], io.resize_image(np.stack([PICTURE] * 3, 2), (4, 5)).transpose(2, 0, 1))
    made.set_mean("gray", PICTURE)
    assert np.allclose(made.mean["gray"], AREAS[1], atol=1e-5)
    made.set_mean("data", np.full((3, 9, 9), 2.0))
    assert made.mean["data"].shape == (3, 4, 5) and np.all(made.mean["data"] == 2)


def test_what_does_not_fit_the_input_is_refused_in_caffes_words() -> None:
    made = transformer()
    with pytest.raises(UsageError, match=r"label is not one of the net inputs: \{'data'"):
        made.preprocess("label", PICTURE)
    with pytest.raises(UsageError, match="Transpose order needs to have the same number of dimensions as the input"):
        made.set_transpose("data", (1, 0))
    with pytest.raises(UsageError, match="Channel swap needs to have the same number of dimensions as the input chan"):
        made.set_channel_swap("data", (1, 0))
    with pytest.raises(ValueError, match=r"Mean channels incompatible with input.*has 2, the input \"data\" 3"):
        made.set_mean("data", np.ones(2))
    with pytest.raises(ValueError, match="Mean shape invalid"):
        made.set_mean("data", np.ones((1, 3, 4, 5)))


@pytest.fixture
def rgb() -> np.ndarray:
    pytest.importorskip("cv2")
    return np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)


def write(path: Path, pixels: np.ndarray) -> str:
    """A PNG of pixels in the order red, green, blue (and alpha); its name."""
    planes = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    order = [2, 1, 0, 3][: len(planes)] if len(planes) > 1 else [0]
    path.write_bytes(encode_image(planes[order], "png"))
    return str(path)


def test_pictures_are_loaded_as_rgb_from_0_to_1(rgb: np.ndarray, tmp_path: Path) -> None:
    made = io.load_image(write(tmp_path / "rgb.png", rgb))
    assert made.dtype == np.float32 and np.array_equal(made, (rgb / 255).astype(np.float32))
    alpha = np.concatenate([rgb, np.full((4, 5, 1), 9, np.uint8)], 2)
    assert np.array_equal(io.load_image(write(tmp_path / "rgba.png", alpha)), made)
    gray = io.load_image(write(tmp_path / "rgb.png", rgb), color=False)
    assert gray.shape == (4, 5, 1) and np.allclose(gray[:, :, 0], rgb / 255 @ [0.2125, 0.7154, 0.0721], atol=1e-7)


def test_gray_pictures_get_three_equal_channels(rgb: np.ndarray, tmp_path: Path) -> None:
    path = write(tmp_path / "gray.png", rgb[:, :, 0])
    expected = (rgb[:, :, :1] / 255).astype(np.float32)
    assert np.array_equal(io.load_image(path), np.tile(expected, (1, 1, 3)))
    assert np.array_equal(io.load_image(path, color=False), expected)


def test_pictures_of_16_bits(rgb: np.ndarray, tmp_path: Path) -> None:
    deep = rgb.astype(np.uint16) * 200
    assert np.array_equal(io.load_image(write(tmp_path / "deep.png", deep)), (deep / 65535).astype(np.float32))


def test_files_that_are_no_pictures(rgb: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        io.load_image(str(tmp_path / "missing.png"))
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(DataError, match=r"text\.png\" cannot be decoded"):
        io.load_image(str(tmp_path / "text.png"))


def test_what_caffes_module_has_imported_is_found_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts call caffe.io.resize and caffe.io.skimage. The libraries here are stand-ins for both."""
    for name in ("skimage", "skimage.io", "skimage.transform", "scipy", "scipy.ndimage"):
        module = ModuleType(name)
        module.resize = module.zoom = name  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    assert (io.resize, io.zoom, io.skimage.__name__) == ("skimage.transform", "scipy.ndimage", "skimage")


def test_what_it_borrows_needs_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("skimage", "scipy.ndimage"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(AttributeError, match=r"caffe\.io\.resize is of scikit-image, .*: pip install scikit-image$"):
        _ = io.resize
    with pytest.raises(UsageError, match=r"interp_order 3: .*: pip install scipy$"):
        io.resize_image(PICTURE[:, :, np.newaxis], (2, 5), 3)
    assert not hasattr(io, "nothing")
