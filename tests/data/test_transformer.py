from pathlib import Path

import numpy as np
import pytest

from fcaffe.data.mean import mean_image, mean_to_blob, read_mean
from fcaffe.data.transformer import Transformer
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, write_binary
from fcaffe.rng import CaffeRandom

INTEROP = Path(__file__).parents[1] / "golden" / "interop"
IMAGES = np.random.default_rng(3).integers(0, 256, (4, 3, 9, 11), np.uint8)


def transformer(text, phase=pb.TEST, seed=1):
    made = Transformer(parse_text(text, pb.TransformationParameter), phase)
    made.seed(CaffeRandom(seed))
    return made


def channels_last(number, shape):
    return np.full((number, *shape[1:], shape[0]), np.nan, np.float32).transpose(0, 3, 1, 2)


def run(made, images=IMAGES):
    out = channels_last(len(images), made.output_shape(images[0].shape))
    made.transform(list(images), out)
    return out


def test_nothing_asked_nothing_done():
    assert np.array_equal(run(transformer("")), IMAGES.astype(np.float32))


def test_subtracts_then_scales_in_float32():
    scale = np.float32(0.017)
    mean = np.array([103.94, 116.78, 123.68], np.float32).reshape(3, 1, 1)
    out = run(transformer("scale: 0.017 mean_value: 103.94 mean_value: 116.78 mean_value: 123.68"))
    assert np.array_equal(out, (IMAGES.astype(np.float32) - mean) * scale)
    assert np.array_equal(run(transformer("scale: 0.017")), IMAGES.astype(np.float32) * scale)
    assert np.array_equal(run(transformer("mean_value: 5.5")), IMAGES.astype(np.float32) - np.float32(5.5))


def test_the_mean_image_is_cropped_like_the_image_and_not_mirrored(tmp_path):
    mean = np.random.default_rng(4).random((3, 9, 11), np.float32) * 255
    write_binary(tmp_path / "mean", mean_to_blob(mean))
    made = transformer(f'crop_size: 5 mirror: true mean_file: "{tmp_path}/mean" scale: 0.25', pb.TRAIN)
    out = run(made)
    draws = CaffeRandom(CaffeRandom(1).draw())
    for index, image in enumerate(IMAGES):
        mirror, row, column = draws.draw() % 2, draws.draw() % 5, draws.draw() % 7
        window = np.s_[:, row : row + 5, column : column + 5]
        expected = (image[window].astype(np.float32) - mean[window]) * np.float32(0.25)
        assert np.array_equal(out[index], expected[:, :, ::-1] if mirror else expected)


def test_crops_of_the_test_phase_are_central_and_draw_nothing():
    made = transformer("crop_size: 4")
    assert not made.needs_random and made.random is None
    assert np.array_equal(run(made), IMAGES[:, :, 2:6, 3:7])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crop_size: 10", "crop_size 10 is larger than the images, which are 9 x 11"),
        ("mean_value: 1 mean_value: 2", r"2 mean_value, but the images have 3 channel\(s\)"),
        ('mean_value: 1 mean_file: "x"', "both mean_file and mean_value"),
        ("force_color: true force_gray: true", "both force_color and force_gray"),
        ('mean_file: "no/such/file"', "mean_file.*no/such/file"),
        (f'mean_file: "{INTEROP}/mean_gray.binaryproto"', r"shape \(1, 28, 28\), the images \(3, 9, 11\)"),
        (f'mean_file: "{INTEROP}/means.npz"', "mean_file.*means.npz|means.npz.*not one image"),
    ],
)
def test_errors(text, words):
    with pytest.raises(DataError, match=words):
        transformer(text).output_shape(IMAGES[0].shape)


def test_the_mean_file_is_announced(capfd):
    transformer(f'mean_file: "{INTEROP}/mean_gray.binaryproto"')
    assert f"Loading mean file from: {INTEROP}/mean_gray.binaryproto" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["gray", "colour"])
def test_reads_and_writes_the_means_of_compute_image_mean(name):
    path = INTEROP / f"mean_{name}.binaryproto"
    mean = read_mean(str(path))
    assert np.array_equal(mean[np.newaxis], np.load(INTEROP / "means.npz")[name])
    assert mean_to_blob(mean) == pb.BlobProto.FromString(path.read_bytes())


def test_takes_the_mean_that_compute_image_mean_takes():
    from fcaffe.data import datum_to_array, open_database, parse_datum

    database = open_database(str(INTEROP / "gray_lmdb"))
    images = [datum_to_array(parse_datum(key, value)) for key, value in database.read(database.entries)]
    assert np.array_equal(mean_image(images), read_mean(str(INTEROP / "mean_gray.binaryproto")))
    with pytest.raises(DataError, match="images of one shape"):
        mean_image([images[0], IMAGES[0]])
    with pytest.raises(DataError, match="no images"):
        mean_image([])
