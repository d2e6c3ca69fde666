import numpy as np
import pytest

from fcaffe.data.images import encode_image
from fcaffe.data.mean import mean_to_blob
from fcaffe.errors import DataError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import write_binary
from fcaffe.rng import CaffeRandom
from tests.data.test_windows import expected_placement
from tests.layers.test_data_layer import make

cv2 = pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")

RNG = np.random.default_rng(8)
PICTURES = [RNG.integers(0, 256, (3, *size), np.uint8) for size in ((30, 40), (25, 20))]
# image, label, x1, y1, x2, y2
FOREGROUND = [(0, 3, 5, 6, 20, 25), (1, 2, 0, 0, 19, 24), (0, 1, 30, 2, 39, 29)]
BACKGROUND = [(1, 0, 2, 3, 9, 9), (0, 0, 0, 0, 5, 29)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("windows.txt", "w") as file:
        for index, picture in enumerate(PICTURES):
            (tmp_path / f"{index}.png").write_bytes(encode_image(picture, "png"))
            windows = [(w, 0.8) for w in FOREGROUND if w[0] == index] + [(w, 0.2) for w in BACKGROUND if w[0] == index]
            file.write(f"# {index}\n{index}.png\n3\n{picture.shape[1]}\n{picture.shape[2]}\n{len(windows)}\n")
            for (_, label, *box), overlap in windows:
                file.write(f"{label or 9} {overlap} {' '.join(map(str, box))}\n")
    write_binary("mean", mean_to_blob(RNG.random((3, 16, 20), np.float32) * 255))
    return tmp_path


def window_data(parameters="", transform="crop_size: 12", seed=1, phase=pb.TRAIN, batch_size=7, source="windows.txt"):
    text = f"""layer {{ name: "windows" type: "WindowData" top: "data" top: "label"
               transform_param {{ {transform} }}
               window_data_param {{ source: "{source}" batch_size: {batch_size} fg_fraction: 0.45 {parameters} }} }}"""
    return make(text, phase, CaffeRandom(seed))


def reference(seed, draws_before, batches, mirrored, pad=0, square=False, mean=None, scale=1.0, crop=12):
    """What Caffe's loop over windows and pixels gives, with windows in the order of the file."""
    random = CaffeRandom(seed)
    random.draws(draws_before)
    draws = CaffeRandom(random.draw())
    foreground = sorted(FOREGROUND, key=lambda window: window[0])
    background = sorted(BACKGROUND, key=lambda window: window[0])
    for _ in range(batches):
        data, labels = np.zeros((7, 3, crop, crop), np.float32), []
        for index, windows in enumerate([background] * 4 + [foreground] * 3):  # int(7 * 0.45) = 3
            window = windows[draws.draw() % len(windows)]
            mirror = mirrored and draws.draw() % 2 == 1
            picture = PICTURES[window[0]]
            place = expected_placement(window, *picture.shape[1:], crop, pad, square, mirror)
            x1, y1, x2, y2, rows, columns, top, left = place
            part = np.ascontiguousarray(picture[:, y1 : y2 + 1, x1 : x2 + 1].transpose(1, 2, 0))
            warped = cv2.resize(part, (columns, rows), interpolation=cv2.INTER_LINEAR)
            if mirror:
                warped = cv2.flip(warped, 1)
            for channel in range(3):
                for row in range(rows):
                    for column in range(columns):
                        less = np.float32(0)
                        if mean is not None and mean.ndim == 1:
                            less = mean[channel]
                        elif mean is not None:
                            start = (mean.shape[2] - crop) // 2
                            less = mean[channel, start + top + row, start + left + column]
                        value = (np.float32(warped[row, column, channel]) - less) * np.float32(scale)
                        data[index, channel, top + row, left + column] = value
            labels.append(window[1])
        yield data, labels


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("parameters", "pad", "square"),
    [
        ("", 0, False),
        ("context_pad: 3", 3, False),
        ('crop_mode: "square"', 0, True),
        ('crop_mode: "square" context_pad: 2 cache_images: true', 2, True),
    ],
)
@pytest.mark.parametrize(
    "mean", ["", "mean_value: 100", "mean_value: 1 mean_value: 2 mean_value: 3", 'mean_file: "mean"']
)
def test_batches(folder, parameters, pad, square, mirrored, mean):
    transform = f"crop_size: 12 mirror: {str(mirrored).lower()} {mean}"
    layer, top = window_data(f"scale: 0.5 {parameters}", transform)
    values = {"": None, "mean_value: 100": np.full(3, 100, np.float32)}
    if "file" in mean:
        blob = pb.BlobProto.FromString((folder / "mean").read_bytes())
        expected_mean = np.array(blob.data, np.float32).reshape(3, 16, 20)
    else:
        expected_mean = values.get(mean, np.array([1, 2, 3], np.float32))
    for data, labels in reference(1, 1, 3, mirrored, pad, square, expected_mean, 0.5):
        layer.forward([], top)
        assert top[1].data.tolist() == labels
        assert np.array_equal(top[0].data, data)
    layer.close()


@pytest.mark.parametrize(("phase", "before"), [(pb.TRAIN, 1), (pb.TEST, 0)])
def test_draws_from_the_run_as_caffe_does(folder, phase, before):
    """The transformer's seed twice if it has to decide, the windows' seed between, and one for the thread."""
    layer, top = window_data(phase=phase)
    for data, labels in reference(1, before, 2, False):
        layer.forward([], top)
        assert top[1].data.tolist() == labels and np.array_equal(top[0].data, data)
    used = CaffeRandom(1)
    used.draws(2 * before + 2)
    assert layer.context.random.state() == used.state()
    layer.close()


def test_says_what_caffe_says(folder, capfd):
    layer, _ = window_data("context_pad: 1", 'crop_size: 12 mean_file: "mean" scale: 3')
    said = capfd.readouterr().err
    for words in (
        "window_data_layer.cpp:53] Window data layer:\n  foreground (object) overlap threshold: 0.5\n"
        "  background (non-object) overlap threshold: 0.5\n  foreground sampling fraction: 0.45\n"
        "  cache_images: 0\n  root_folder: \n",
        "Number of images: 2\n",
        "class 0 has 2 samples",
        "Amount of context padding: 1",
        "Crop mode: warp",
        "window_data_layer.cpp:180] output data size: 7,3,12,12",
        "window_data_layer.cpp:196] Loading mean file from: mean",
        "transform_param.scale is ignored, as in Caffe",
    ):
        assert words in said
    layer.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"transform": ""}, DataError, "crop_size must be positive"),
        ({"parameters": "context_pad: 6"}, DataError, "context_pad 6 leaves nothing"),
        ({"parameters": "fg_threshold: 0.9"}, DataError, "has no foreground windows"),
        ({"parameters": 'root_folder: "no/" cache_images: true'}, DataError, 'cannot read the picture "no/0.png"'),
        ({"transform": 'crop_size: 18 mean_file: "mean"'}, DataError, "too small for crop_size 18"),
        ({"source": "none"}, DataError, "cannot read the window file"),
    ],
)
def test_errors_at_setup_name_the_layer(folder, arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        window_data(**arguments)
    assert str(caught.value).startswith('layer "windows" (WindowData): ')


def test_a_window_outside_of_its_picture_is_named(folder):
    with open("windows.txt", "a") as file:
        file.write("# 2 1.png 3 25 20 1\n4 0.9 0 0 20 24\n")
    layer, top = window_data()
    with pytest.raises(DataError, match=r'layer "windows".*\(0, 0\) to \(20, 24\) does not lie.*25 x 20.*"1\.png"'):
        for _ in range(30):
            layer.forward([], top)
    layer.close()
