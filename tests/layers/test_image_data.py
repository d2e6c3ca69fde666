import numpy as np
import pytest

from fcaffe.cli import main
from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.image_list import read_image_list
from fcaffe.data.images import encode_image
from fcaffe.errors import DataError, NetError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom
from tests.conftest import GOLDEN
from tests.layers.test_data_layer import SEEDS, data_layer, make

pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")

PIXELS = np.random.default_rng(7).integers(0, 256, (13, 3, 6, 8), np.uint8)


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """list.txt of 13 pictures with labels 0, 1, ..., in the current folder."""
    monkeypatch.chdir(tmp_path)
    for index, pixels in enumerate(PIXELS):
        (tmp_path / f"{index}.png").write_bytes(encode_image(pixels, "png"))
    (tmp_path / "list.txt").write_text("".join(f"{index}.png {index}\n" for index in range(len(PIXELS))))
    return tmp_path


def image_data(parameters="", transform="", phase=pb.TEST, seed=1, batch_size=5, source="list.txt"):
    text = f"""layer {{ name: "images" type: "ImageData" top: "data" top: "label" transform_param {{ {transform} }}
               image_data_param {{ source: "{source}" batch_size: {batch_size} {parameters} }} }}"""
    return make(text, phase, CaffeRandom(seed))


def labels_of(layer, top, batches):
    labels = []
    for _ in range(batches):
        layer.forward([], top)
        labels += top[1].data.astype(int).tolist()
    return labels


@pytest.mark.parametrize("case", ["colour", "gray", "resized"])
def test_reads_what_caffe_read(case, monkeypatch):
    monkeypatch.chdir(GOLDEN / "interop")
    with np.load(f"image_list_{case}.npz") as file:
        golden = dict(file)
    layer, top = make(str(golden["prototxt"]), pb.TEST, CaffeRandom(1))
    for data, label in zip(golden["data"], golden["label"], strict=True):
        layer.forward([], top)
        assert np.array_equal(top[0].data, data)
        assert np.array_equal(top[1].data, label)
    layer.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", ["shuffle", "skip"])
def test_shuffles_and_skips_as_caffe_does_for_the_seed(case, seed, pictures):
    with np.load(GOLDEN / "fillers" / f"shuffle_seed{seed}.npz") as file:
        golden = dict(file)
    assert golden["images"] == len(PIXELS)
    random = CaffeRandom(seed)
    layer, top = make(str(golden[f"{case}/prototxt"]), pb.TRAIN, random)
    weights = golden[f"{case}/conv_weights"]  # filled right after the data layer has taken its draws
    assert np.array_equal(random.normal(0, 1, weights.size).reshape(weights.shape), weights)
    assert labels_of(layer, top, 9) == golden[f"{case}/labels"].ravel().tolist()
    layer.close()


def test_transforms(pictures):
    layer, top = image_data('root_folder: "./"', "crop_size: 4 mean_value: 1 mean_value: 2 mean_value: 3 scale: 0.5")
    layer.forward([], top)
    expected = (PIXELS[:5, :, 1:5, 2:6].astype(np.float32) - np.array([1, 2, 3]).reshape(3, 1, 1)) * np.float32(0.5)
    assert np.array_equal(top[0].data, expected)
    layer.close()


@pytest.mark.parametrize("kind", ["Data", "ImageData"])
def test_augmentations_of_ssd_work_here_too(kind, pictures):
    resize = "resize_param { prob: 1 resize_mode: WARP height: 3 width: 4 interp_mode: NEAREST }"
    write_lmdb("lmdb", ((b"%02d" % i, array_to_datum(x, i).SerializeToString()) for i, x in enumerate(PIXELS)))
    layer, top = data_layer("lmdb", 5, resize) if kind == "Data" else image_data(transform=resize)
    layer.forward([], top)
    assert np.array_equal(top[0].data, PIXELS[:5, :, ::2, ::2])
    layer.close()


def test_says_what_caffe_says(pictures, capfd):
    layer, _ = image_data("shuffle: true rand_skip: 1")
    lines = [line.split(None, 3)[3] for line in capfd.readouterr().err.splitlines()[1:]]
    assert lines == [
        "image_data_layer.cpp:38] Opening file list.txt",
        "image_data_layer.cpp:53] Shuffling data",
        "image_data_layer.cpp:63] A total of 13 images.",
        "image_data_layer.cpp:70] Skipping first 0 data points.",
        "image_data_layer.cpp:90] output data size: 5,3,6,8",
    ]
    layer.close()


def test_a_state_of_another_list_is_refused(pictures):
    layer, _ = image_data("shuffle: true")
    state = layer.state()
    with pytest.raises(DataError, match=r'layer "images".*the snapshot is of another list'):
        layer.restore_state(state | {"random": state["random"][:-4]})
    layer.close()


def test_a_picture_that_is_missing_or_damaged_is_named_with_list_and_layer(pictures):
    layer, top = image_data()
    content = (pictures / "2.png").read_bytes()
    (pictures / "2.png").write_bytes(content[:20] + bytes(100))
    with pytest.raises(DataError, match=r'layer "images".*"2\.png" cannot be decoded.*in the list "list\.txt"'):
        layer.forward([], top)
    layer.close()
    (pictures / "0.png").unlink()
    with pytest.raises(DataError, match=r'cannot read the picture "0\.png": No such file'):
        image_data()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.write_bytes(b"no picture"), "is no picture of a kind that OpenCV reads"),
        (lambda path: path.write_bytes(b""), "is no picture of a kind that OpenCV reads"),
        (lambda path: path.unlink(), "is not there"),
        (lambda path: [path.unlink(), path.mkdir()], "is no file"),
    ],
)
@pytest.mark.parametrize("index", [1, 7, 12])
def test_the_first_batch_wants_all_files_to_begin_as_pictures(pictures, index, damage, problem, monkeypatch):
    """Not only those of the first batch, so that training does not end at a random iteration."""
    list_file = pictures / "list.txt"
    list_file.write_text("\n\n" + list_file.read_text())
    damage(pictures / f"{index}.png")
    layer, top = image_data("shuffle: true")
    with pytest.raises(DataError, match=rf'layer "images".*list\.txt:{index + 3}: "{index}\.png" {problem}; correct'):
        layer.forward([], top)
    layer.close()
    monkeypatch.setattr("fcaffe.data.image_list.MOST_CHECKED", 2)  # of 13 files the first and the eighth are checked
    layer, top = image_data()
    if index == 7:
        with pytest.raises(DataError, match=problem):
            layer.forward([], top)
    layer.close()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"batch_size": 0}, NetError, "batch_size must be positive"),
        ({"parameters": f"new_height: {2**32 - 1} new_width: {2**32 - 1}"}, DataError, "more than 1073741824 pixels"),
        ({"parameters": "new_height: 5"}, DataError, "both new_height and new_width"),
        ({"source": "none"}, DataError, "cannot read the list of images"),
        ({"parameters": "rand_skip: 4000000000"}, DataError, "is more than the 13 images"),
    ],
)
def test_errors_at_setup_name_the_layer(pictures, arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        image_data(**arguments)
    assert str(caught.value).startswith('layer "images" (ImageData): ')


@pytest.mark.parametrize(("values", "more"), [(["0.25"], []), (["3", "-1", "7"], ["--encoded"]), (["0.5", "1e-3"], [])])
def test_labels_of_a_line_come_from_lists_and_databases_alike(values, more, pictures):
    size, rows = len(values), [[*values[1:], value] if k % 2 else values for k, value in enumerate(values[:1] * 13)]
    wanted = np.array(rows, np.float32)
    (pictures / "list.txt").write_text("".join(f"{k}.png {' '.join(row)}\n" for k, row in enumerate(rows)))
    assert main(["convert_imageset", f"--label_size={size}", *more, "./", "list.txt", "db"]) == 0
    for layer, top in (image_data(f"label_size: {size}", batch_size=13), data_layer("db", 13)):
        assert top[1].shape == ((13, size) if size > 1 else (13,))
        layer.forward([], top)
        assert np.array_equal(top[1].data.reshape(13, size), wanted)
        layer.close()
    assert main(["lmdb", "export", "db", "again"]) == 0
    assert np.array_equal(
        np.float32([np.ravel(image.label) for image in read_image_list("again/list.txt", size)]), wanted
    )


@pytest.mark.parametrize("line", ["3.png 1", "3.png 1 2 3", "a 3.png x 1", "3.png"])
def test_another_number_of_labels_is_named_with_its_line(line, pictures):
    (pictures / "list.txt").write_text(f"0.png 1 2\n\n{line}\n")
    with pytest.raises(DataError, match=r"list.txt:3: [013] numbers after the path, but label_size is 2"):
        image_data("label_size: 2", batch_size=1)


def test_a_record_with_another_number_of_labels_is_named(pictures):
    datums = [pb.Datum(float_data=labels) for labels in ([1, 2], [0.5, 3], [4])]
    for datum in datums:
        datum.MergeFrom(array_to_datum(PIXELS[0], 5))
    write_lmdb("db", ((b"%d" % index, datum.SerializeToString()) for index, datum in enumerate(datums)))
    layer, top = data_layer("db", 3)
    with pytest.raises(DataError, match=r'record "2" has 1 labels, and the first one 2'):
        layer.forward([], top)
