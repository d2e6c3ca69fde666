"""pycaffe's Detector."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fcaffe.data.images import encode_image
from fcaffe.errors import ArgumentError, UsageError
from fcaffe.pycaffe import io
from fcaffe.pycaffe.detector import Detector
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.session import TEST

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.1 } } }
"""
MEAN = np.array([51.0, 102, 153])


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "deploy.prototxt").write_text(NET)
    net = Net(str(tmp_path / "deploy.prototxt"), TEST)
    net.save(str(tmp_path / "net.caffemodel"))
    return str(tmp_path / "deploy.prototxt"), str(tmp_path / "net.caffemodel")


@pytest.fixture
def picture(tmp_path: Path) -> str:
    pytest.importorskip("cv2")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 30), np.uint8)
    (tmp_path / "a.png").write_bytes(encode_image(pixels, "png"))
    return str(tmp_path / "a.png")


def detector(files: tuple[str, str], context_pad: int | None = None) -> Detector:
    return Detector(*files, mean=MEAN, raw_scale=255, channel_swap=[2, 1, 0], context_pad=context_pad)


@pytest.mark.parametrize("context_pad", [None, 2])
def test_windows_are_cropped_and_classified(files: tuple[str, str], picture: str, context_pad: int | None) -> None:
    windows = [(0, 0, 20, 30), (3, 4, 9, 17), (10, 12, 20, 20), (1, 2, 18, 28), (5, 5, 9, 9)]  # more than a batch
    net = detector(files, context_pad)
    found = net.detect_windows((name, windows) for name in [picture])
    assert [(one["filename"], one["window"]) for one in found] == [(picture, window) for window in windows]
    image = io.load_image(picture)
    for one in found:
        net.blobs["data"].data[...] = net.transformer.preprocess("data", net.crop(image, one["window"]))
        assert np.allclose(one["prediction"], net.forward()["ip"][0], atol=1e-4)


def test_no_windows(files: tuple[str, str], picture: str) -> None:
    assert detector(files).detect_windows([(picture, [])]) == []


def test_crops_without_context_are_the_window(files: tuple[str, str]) -> None:
    image = np.arange(20 * 30 * 3.0).reshape(20, 30, 3)
    assert np.array_equal(detector(files).crop(image, np.array([1, 2, 5, 9])), image[1:5, 2:9])


def test_context_lies_around_the_window_and_is_the_mean_beyond_the_picture(files: tuple[str, str]) -> None:
    net = detector(files, context_pad=2)
    image = np.random.default_rng(0).random((20, 30, 3)).astype(np.float32)
    crop = net.crop(image, np.array([6, 8, 9, 11]))  # 4 x 4 pixels, and 2 on each side
    assert crop.shape == (8, 8, 3) and np.allclose(crop, io.resize_image(image[4:12, 6:14], (8, 8)), atol=1e-6)
    corner = net.crop(image, np.array([0, 0, 3, 3]))
    assert np.allclose(corner[:2], [0.6, 0.4, 0.2]) and np.allclose(corner[:, :2], [0.6, 0.4, 0.2])
    assert not np.allclose(corner[2:, 2:], [0.6, 0.4, 0.2])
    assert list(net.crop_dims) == [8, 8, 3] and np.allclose(net.crop_mean, [[[0.6, 0.4, 0.2]]])


def test_context_without_a_mean_is_zero(files: tuple[str, str]) -> None:
    net = Detector(*files, context_pad=2)
    assert net.crop_mean.shape == (8, 8, 3) and not net.crop_mean.any()
    full = Detector(*files, mean=np.arange(3 * 8 * 8.0).reshape(3, 8, 8), context_pad=2)
    assert np.array_equal(full.crop_mean, np.arange(3 * 8 * 8.0).reshape(3, 8, 8).transpose(1, 2, 0))


@pytest.mark.parametrize("window", [(-1, 0, 5, 5), (0, 3, 5, 3), (20, 0, 25, 5), (7, 0, 5, 5)])
def test_windows_without_pixels_are_refused(files: tuple[str, str], window: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="is empty in a picture of 20 x 30"):
        detector(files).crop(np.zeros((20, 30, 3)), window)


def test_context_that_leaves_nothing_of_the_window_is_refused(files: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="context_pad 4 at each border does not fit the net's input of 8 x 8"):
        detector(files, context_pad=4)


def test_selective_search_is_asked_for_windows(
    files: tuple[str, str], picture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Search(ModuleType):
        @staticmethod
        def get_windows(names: list[str], cmd: str) -> list[np.ndarray]:
            asked.append((names, cmd))
            return [np.array([[0, 0, 5, 5], [1, 1, 9, 9]])] * len(names)

    monkeypatch.chdir(Path(picture).parent)
    name = "selective_search_ijcv_with_python"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="needs MATLAB and the Python module selective_search_ijcv_with_python"):
        detector(files).detect_selective_search(["a.png"])
    monkeypatch.setitem(sys.modules, name, Search(name))
    found = detector(files).detect_selective_search(["a.png"])
    assert asked == [([picture], "selective_search_rcnn")]
    assert [list(one["window"]) for one in found] == [[0, 0, 5, 5], [1, 1, 9, 9]]
