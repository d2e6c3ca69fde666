"""SSD's layers: files of detections, boxes, what differs from the fork, and errors."""

from pathlib import Path

import numpy as np
import pytest

from fcaffe.data import boxes
from fcaffe.engines import NumpyEngine
from fcaffe.errors import DataError
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.pycaffe import session
from fcaffe.pycaffe.net import Net as ScriptNet
from fcaffe.rng import CaffeRandom
from tests.conftest import GOLDEN, make_net
from tests.layers.examples_of_forks import PRIORS, TRUTH

FILES = sorted((GOLDEN / "forks" / "files").glob("*.npz"))

DETECTION = """layer { name: "in" type: "Input" top: "codes" top: "scores" top: "priors" input_param {
    shape { dim: 2 dim: 16 } shape { dim: 2 dim: 12 } shape { dim: 1 dim: 2 dim: 16 } } }
  layer { name: "found" type: "DetectionOutput" bottom: "codes" bottom: "scores" bottom: "priors" top: "rows"
    detection_output_param { num_classes: 3 %s } }"""

LOSS = """layer { name: "in" type: "Input" top: "codes" top: "scores" top: "priors" top: "objects" input_param {
    shape { dim: 2 dim: 16 } shape { dim: 2 dim: 12 } shape { dim: 1 dim: 2 dim: 16 }
    shape { dim: 1 dim: 1 dim: 3 dim: 8 } } }
  layer { name: "loss" type: "MultiBoxLoss" bottom: "codes" bottom: "scores" bottom: "priors" bottom: "objects"
    top: "loss" multibox_loss_param { num_classes: 3 code_type: CENTER_SIZE %s } }"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a label map and sizes of two images."""
    monkeypatch.chdir(tmp_path)
    Path("map.prototxt").write_text("".join(f'item {{ name: "thing {n}" label: {n} }}\n' for n in range(3)))
    Path("sizes.txt").write_text("first 100 200\nsecond 50 40\n")
    return tmp_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_saved_files_are_those_of_ssd(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    golden = np.load(path)
    for name, text in zip(golden["file_names"], golden["file_texts"], strict=True):
        Path(str(name)).write_text(str(text))
    net = make_net(str(golden["prototxt"]), "TEST")
    for index, name in enumerate(golden["input_names"]):
        net.blob(str(name)).data[...] = golden[f"bottom_{index}"]
    for _ in range(2):  # the second test overwrites the files of the first
        net.forward()
        saved = {file.name: file.read_text() for file in Path("out").iterdir()}
        assert saved == dict(zip(map(str, golden["saved_names"]), map(str, golden["saved_texts"]), strict=True))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('output_format: "XML" label_map_file: "map.prototxt"', 'output_format "XML" is none of VOC, ILSVRC, COCO'),
        ('output_format: "VOC" label_map_file: "two.prototxt"', "two.prototxt has no name for label 2"),
        ('output_format: "VOC" label_map_file: "map.prototxt" resize_param { height: 3 }', "the height and the width"),
    ],
)
def test_files_that_cannot_be_saved(folder, fields, message):
    Path("two.prototxt").write_text('item { name: "a" label: 1 }')
    saving = f'save_output_param {{ output_directory: "out" name_size_file: "sizes.txt" {fields} }}'
    with pytest.raises(DataError, match=message):
        make_net(DETECTION % saving, "TEST")


@pytest.mark.parametrize("text", ["a 1 2\nb 3\n", "a 0 5\n"])
def test_a_damaged_list_of_sizes(folder, text):
    Path("bad.txt").write_text(text)
    saving = 'save_output_param { output_directory: "out" name_size_file: "bad.txt" output_format: "COCO"'
    with pytest.raises(DataError, match=r"bad.txt: a name_size_file has lines of a name, a height and a width"):
        make_net(DETECTION % f'{saving} label_map_file: "map.prototxt" }}', "TEST")


@pytest.mark.parametrize(("count", "threshold", "eta"), [(30, 0.3, 1), (1500, 0.45, 1), (1500, 0.95, 0.995)])
def test_suppression_in_blocks_is_that_of_single_boxes(count, threshold, eta):
    random = np.random.default_rng(3)
    centres, sides = random.uniform(0, 1, (count, 2)), random.uniform(0.02, 0.3, (count, 2))
    found = np.concatenate([centres - sides, centres + sides], axis=1).astype(np.float32)
    overlap, kept, least = boxes.overlaps(found, found), [], np.float32(threshold)
    for index in range(count):
        if (overlap[index, kept] <= least).all():
            kept.append(index)
            if eta < 1 and least > 0.5:
                least *= np.float32(eta)
    assert boxes.suppress(found, threshold, eta).tolist() == kept
    assert boxes.suppress(found, threshold, eta, limit=7).tolist() == kept[:7]


@pytest.mark.parametrize("code_type", [boxes.CORNER, boxes.CENTER_SIZE, boxes.CORNER_SIZE])
def test_codes_decode_to_their_boxes(code_type):
    priors = np.array(PRIORS[:16], np.float32).reshape(4, 4)
    found = priors + np.array([-0.1, 0.02, 0.1, 0.04], np.float32)
    variances = np.array([0.1, 0.1, 0.2, 0.2], np.float32)
    for scale in (variances, None):
        codes = boxes.encode(found, priors, scale, code_type)
        np.testing.assert_allclose(boxes.decode(codes, priors, scale, code_type), found, atol=1e-6)


def loss_net(fields: str) -> Net:
    net = make_net(LOSS % fields)
    random = np.random.default_rng(2)
    for name in ("codes", "scores"):
        net.blob(name).data[...] = random.normal(size=net.blob(name).shape)
    net.blob("priors").data[...] = np.resize(PRIORS, (1, 2, 16))
    net.blob("objects").data[...] = np.resize(TRUTH, (1, 1, 3, 8))
    return net


def test_mining_with_nms_needs_no_top_k():
    """In the fork nothing is chosen without top_k."""
    nms = "use_prior_for_nms: true nms_param { nms_threshold: 0.4 %s }"
    assert loss_net(nms % "").forward() == loss_net(nms % "top_k: 99").forward() > loss_net(nms % "top_k: 0").forward()


def test_scores_that_are_no_numbers_give_a_loss_that_is_none():
    net = loss_net("neg_pos_ratio: 99")
    net.blob("scores").data[0] = np.nan
    assert np.isnan(net.forward())


def detected(fields, scores, codes=0):
    """The rows for boxes by these codes, with a score of 0.75 at these indices of the scores (N, P * classes)."""
    net = make_net(DETECTION % f"{fields} confidence_threshold: 0.5", "TEST")
    net.blob("priors").data[...] = np.resize(PRIORS, (1, 2, 16))
    net.blob("codes").data[...] = codes
    for index in scores:
        net.blob("scores").data[index] = 0.75
    net.forward()
    return net.blob("rows").data[0, 0]


@pytest.mark.parametrize("form", ["VOC", "COCO"])
def test_boxes_that_are_no_numbers_are_saved_as_empty_ones(form, folder):
    saving = (
        f'output_directory: "out" name_size_file: "sizes.txt" label_map_file: "map.prototxt" output_format: "{form}"'
    )
    detected(f"save_output_param {{ {saving} }}", [(0, 1)], codes=np.nan)
    text = Path("out", {"VOC": "thing 1.txt", "COCO": ".json"}[form]).read_text()
    assert text == "first 0.75 0 0 0 0\n" or '"score": 0.75' in text


def test_without_a_background_class_0_is_found():
    rows = detected("background_label_id: -1", [(0, 0), (1, 4)])
    assert rows[:, :3].tolist() == [[0, 0, 0.75], [1, 1, 0.75]]


def test_a_script_reads_as_many_rows_as_there_are(folder):
    Path("net.prototxt").write_text(DETECTION % "confidence_threshold: 0.5")
    net = ScriptNet("net.prototxt", session.TEST)
    net.blobs["priors"].data[...] = np.resize(PRIORS, (1, 2, 16))
    for count in (3, 0, 4, 1):
        net.blobs["scores"].data[...] = 0
        net.blobs["scores"].data[0, 1 : 3 * count : 3] = np.linspace(0.9, 0.6, count)
        rows = net.forward()["rows"]
        assert rows.shape == net.blobs["rows"].data.shape == (1, 1, count or 2, 7)
        np.testing.assert_allclose(rows[0, 0, :count, 2], np.linspace(0.9, 0.6, count), rtol=1e-6)


def test_another_number_of_boxes_needs_no_new_memory_plan():
    """Nor are the layers before recorded again."""
    evaluate = """
      layer { name: "more" type: "Input" top: "objects" input_param { shape { dim: 1 dim: 1 dim: 3 dim: 8 } } }
      layer { name: "eval" type: "DetectionEvaluate" bottom: "rows" bottom: "objects" top: "judged"
        detection_evaluate_param { num_classes: 3 } }"""
    param = parse_text(f"{DETECTION % 'confidence_threshold: 0.5'} {evaluate}", pb.NetParameter)
    net = Net(param, Context(NumpyEngine(), CaffeRandom(1), inference=True, whole_passes=True))
    net.blob("priors").data[...] = np.resize(PRIORS, (1, 2, 16))
    net.blob("objects").data[...] = np.resize(TRUTH, (1, 1, 3, 8))
    versions = []
    for count in (4, 1, 8, 0):
        net.blob("scores").data[...] = 0
        net.blob("scores").data.reshape(-1, 3)[:count, 1] = 0.9
        net.forward()
        assert net.blob("judged").shape == (1, 1, 2 + count, 5)
        versions.append(net.arena.version)
    assert len(set(versions)) == 1
