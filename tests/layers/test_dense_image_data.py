import numpy as np
import pytest

from fcaffe.data.images import encode_image
from fcaffe.errors import DataError, NetError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from tests.layers.test_data_layer import make

cv2 = pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")

PIXELS = np.random.default_rng(3).integers(0, 256, (7, 1, 9, 12), np.uint8)


@pytest.fixture(autouse=True)
def pictures(tmp_path, monkeypatch):
    """pairs.txt of 7 gray pictures, each of which is its own picture of labels, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for index, pixels in enumerate(PIXELS):
        (tmp_path / f"{index}.png").write_bytes(encode_image(pixels, "png"))
    (tmp_path / "pairs.txt").write_text("".join(f"{index}.png {index}.png\n" for index in range(len(PIXELS))))
    return tmp_path


def dense(parameters="", transform="", phase=pb.TRAIN):
    text = f"""layer {{ name: "pairs" type: "DenseImageData" top: "data" top: "label" transform_param {{ {transform} }}
               dense_image_data_param {{ source: "pairs.txt" batch_size: 3 {parameters} }} }}"""
    return make(text, phase, CaffeRandom(5))


@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST])
def test_labels_follow_the_pixels(phase):
    layer, top = dense("shuffle: true mirror: true crop_height: 4 crop_width: 5", "mean_value: 7 scale: 2", phase)
    seen = set()
    for _ in range(6):
        layer.forward([], top)
        data, labels = (blob.data.astype(int) for blob in top)
        assert data.shape == (3, 3, 4, 5) and labels.shape == (3, 1, 4, 5)
        assert np.array_equal(data, np.repeat(2 * (labels - 7), 3, 1))
        seen |= {image.tobytes() for image in labels}
    assert len(seen) > 3 * 3, "pictures are cropped at random"
    layer.close()


@pytest.mark.parametrize("divisor", [1, 2])
def test_pictures_are_resized_and_labels_to_the_nearest(divisor):
    layer, top = dense(f"new_height: 6 new_width: 8 is_color: false label_divide_factor: {divisor}")
    layer.forward([], top)
    assert np.array_equal(top[0].data[:, 0], [cv2.resize(image[0], (8, 6)) for image in PIXELS[:3]])
    small = [
        cv2.resize(image[0], (8 // divisor, 6 // divisor), interpolation=cv2.INTER_NEAREST) for image in PIXELS[:3]
    ]
    assert np.array_equal(top[1].data[:, 0], small)
    layer.close()


@pytest.mark.parametrize(
    ("line", "parameters", "transform", "message"),
    [
        ("0.png", "", "", 'pairs.txt:1: "0.png" is not two paths'),
        ("0.png small.png", "", "", '"small.png" has 4 x 5 labels (height x width) for the 9 x 12 pixels of "0.png"'),
        ("0.png none.png", "", "", "none.png"),
        ("0.png 0.png", "crop_height: 4", "", "needs both crop_height and crop_width"),
        ("0.png 0.png", "crop_height: 10 crop_width: 10", "", "larger than the images"),
        ("0.png 0.png", "label_divide_factor: 2 crop_height: 4 crop_width: 4", "", "label_divide_factor must be"),
        ("0.png 0.png", "", "mirror: true", "belong in dense_image_data_param"),
    ],
)
def test_errors_name_the_cause(line, parameters, transform, message, pictures):
    (pictures / "small.png").write_bytes(encode_image(PIXELS[0][:, :4, :5], "png"))
    (pictures / "pairs.txt").write_text(line)
    with pytest.raises((DataError, NetError)) as error:
        dense(parameters, transform)
    assert message in str(error.value)
