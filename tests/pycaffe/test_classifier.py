"""pycaffe's Classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import ArgumentError
from fcaffe.pycaffe import io
from fcaffe.pycaffe.classifier import Classifier
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.session import TEST, set_random_seed

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 6 dim: 5 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 7 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
MEAN = np.array([10.0, 20, 30])


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A deploy net and its weights."""
    (tmp_path / "deploy.prototxt").write_text(NET)
    set_random_seed(1)
    net = Net(str(tmp_path / "deploy.prototxt"), TEST)
    net.save(str(tmp_path / "net.caffemodel"))
    return str(tmp_path / "deploy.prototxt"), str(tmp_path / "net.caffemodel")


def pictures(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.random((9 + n, 12, 3)).astype(np.float32) for n in range(count)]


def probabilities(net: Net, crop: np.ndarray) -> np.ndarray:
    """What the net says of one crop (H x W x RGB in [0, 1])."""
    values = 0.5 * (255 * crop[:, :, ::-1].transpose(2, 0, 1) - MEAN.reshape(3, 1, 1))
    net.blobs["data"].data[...] = values
    return net.forward()["prob"][0].copy()


def classifier(files: tuple[str, str], **settings: object) -> Classifier:
    return Classifier(*files, mean=MEAN, input_scale=0.5, raw_scale=255, channel_swap=(2, 1, 0), **settings)  # type: ignore[arg-type]


def test_a_classifier_is_a_net(files: tuple[str, str]) -> None:
    made = Classifier(*files)
    assert isinstance(made, Net) and made.inputs == ["data"] and "ip" in made.params
    assert list(made.crop_dims) == list(made.image_dims) == [6, 5]
    assert list(classifier(files, image_dims=[8, 9]).image_dims) == [8, 9]


def test_predictions_of_central_crops(files: tuple[str, str]) -> None:
    given = pictures(6)  # more than a batch, and no multiple of one
    made = classifier(files, image_dims=[8, 9]).predict(given, oversample=False)
    net = Net(*files, TEST)
    expected = [probabilities(net, io.resize_image(picture, (8, 9))[1:7, 2:7]) for picture in given]
    assert made.shape == (6, 7) and np.allclose(made, expected, atol=1e-6)


def test_predictions_are_means_over_ten_crops(files: tuple[str, str]) -> None:
    given = pictures(3)
    made = classifier(files, image_dims=(8, 9)).predict(given)
    net = Net(*files, TEST)
    crops = io.oversample([io.resize_image(picture, (8, 9)) for picture in given], (6, 5))
    expected = np.array([probabilities(net, crop) for crop in crops]).reshape(3, 10, 7).mean(1)
    assert made.shape == (3, 7) and np.allclose(made, expected, atol=1e-6)


def test_without_image_dims_the_whole_picture_is_seen(files: tuple[str, str]) -> None:
    given = pictures(2)
    made = classifier(files).predict(given, False)
    net = Net(*files, TEST)
    assert np.allclose(made, [probabilities(net, io.resize_image(p, (6, 5))) for p in given], atol=1e-6)


def test_what_does_not_fit_is_refused(files: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="was given none"):
        classifier(files).predict([])
    with pytest.raises(ArgumentError, match=r"a picture has 1 channels, the input \"data\" of the net 3"):
        classifier(files).predict([np.zeros((6, 5, 1))])
    with pytest.raises(ArgumentError, match=r"the net's input of 6 x 5 is larger than image_dims \(4, 9\)"):
        classifier(files, image_dims=(4, 9)).predict(pictures(1), False)
    with pytest.raises(ArgumentError, match="crops of 6 x 5 do not fit"):
        classifier(files, image_dims=(4, 9)).predict(pictures(1))
    path = tmp_path / "flat.prototxt"
    path.write_text('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }')
    with pytest.raises(ArgumentError, match=r'input "x" has the shape \(4, 3\)'):
        Classifier(str(path), files[1])
    path.write_text('layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 4 dim: 3 } } }')
    with pytest.raises(ArgumentError, match="no input for pictures"):
        Classifier(str(path), files[1])
