"""`fcaffe detect-objects`: prints and draws the boxes that a detection net finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcaffe.data.images import decode_image, encode_image
from fcaffe.pycaffe import session
from fcaffe.pycaffe.net import Net
from tests.cli.conftest import Run

# Four priors, the quarters of the picture. The scores are the biases, whatever the picture, but for a weight.
NET = """name: "quarters"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool"
  pooling_param { pool: AVE kernel_size: 4 stride: 4 } }
layer { name: "priors" type: "PriorBox" bottom: "pool" bottom: "data" top: "priors" prior_box_param { min_size: 4 } }
layer { name: "codes" type: "InnerProduct" bottom: "pool" top: "codes" inner_product_param { num_output: 16 } }
layer { name: "scores" type: "InnerProduct" bottom: "pool" top: "scores" inner_product_param { num_output: 12 } }
layer { name: "found" type: "DetectionOutput" bottom: "codes" bottom: "scores" bottom: "priors" top: "found"
  detection_output_param { num_classes: 3 confidence_threshold: 0.01 nms_param { nms_threshold: 0.45 } } }
"""
MODEL = ["--model", "net.prototxt", "--weights", "net.caffemodel"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a detection net, its weights, a label map without a name for class 2, and two pictures of 40 x 20 pixels."""
    pytest.importorskip("cv2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_on_gpu", False)
    Path("net.prototxt").write_text(NET)
    net = Net("net.prototxt", session.TEST)
    scores = np.zeros((4, 3))
    scores[0, 1], scores[3, 2], scores[1, 1] = 0.9, 0.75, 0.3
    net.params["scores"][1].data[...] = scores.reshape(-1)
    net.params["scores"][0].data[4, 0] = 0.001  # the score of class 1 at prior 1 grows with the blue of prior 0
    net.save("net.caffemodel")
    Path("map.prototxt").write_text('item { name: "n1" label: 1 display_name: "cat" }')
    Path("some").mkdir()
    for name, value in (("a.png", 104), ("b.jpg", 254)):
        Path(f"some/{name}").write_bytes(encode_image(np.full((3, 20, 40), value, np.uint8), name[-3:]))


def test_boxes_are_printed_best_first(run: Run) -> None:
    done = run("detect-objects", *MODEL, "--labelmap", "map.prototxt", "some/a.png", "some/b.jpg")
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "some/a.png: cat 0.9000 0 0 20 10",
            "some/a.png: label 2 0.7500 20 10 40 20",
            "some/b.jpg: cat 0.9000 0 0 20 10",
            "some/b.jpg: label 2 0.7500 20 10 40 20",
        ],
    )
    assert "some/a.png: 2 object(s)" in done.err


@pytest.mark.parametrize(
    ("flags", "score"),
    [([], 0.3 + 0.150), (["--mean", "54"], 0.3 + 0.2), (["--mean", ""], 0.3 + 0.254), (["--scale", "2"], 0.3 + 0.3)],
)
def test_mean_and_scale(flags: list[str], score: float, run: Run) -> None:
    lines = run("detect-objects", *MODEL, *flags, "--threshold", "0.2", "some/b.jpg").out.splitlines()
    (line,) = [line for line in lines if line.endswith("20 0 40 10")]
    assert float(line.split()[3]) == pytest.approx(score, abs=3e-3)


def test_boxes_are_drawn(run: Run) -> None:
    done = run("detect-objects", *MODEL, "--labelmap", "map.prototxt", "--out", "drawn", "some/a.png", "some/b.jpg")
    assert done.code == 0 and sorted(path.name for path in Path("drawn").iterdir()) == ["a.png", "b.jpg"]
    drawn = decode_image(Path("drawn/a.png").read_bytes(), "it")
    changed = (drawn != 104).any(axis=0)
    assert changed[10, :20].all() and changed[10:, 20].all(), "edges of the boxes"
    assert not changed[18:, :15].any(), "where there is nothing"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["some/a.png"], "or --model FILE and --weights FILE"),
        ([*MODEL, "--out", "some", "some/a.png"], "some/a.png is another file of this command"),
        ([*MODEL, "--out", "x", "some/a.png", "./some/a.png"], "several pictures have the same name"),
        ([*MODEL, "--mean", "1,2", "some/a.png"], "2 mean_value"),
        ([*MODEL, "--labelmap", "net.prototxt", "some/a.png"], "cannot read a label map"),
    ],
)
def test_mistakes(words: list[str], message: str, run: Run) -> None:
    assert message in run("detect-objects", *words).fatal


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [("", "", "has no output of a D"), ("dim: 3 dim: 8 dim: 8", "dim: 64", "[4, 64]; one for")],
)
def test_other_nets(old: str, new: str, problem: str, run: Run) -> None:
    classifier = """name: "other"
      layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
      layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 } }"""
    Path("other.prototxt").write_text(classifier.replace(old, new))
    Net("other.prototxt", session.TEST).save("other.caffemodel")
    done = run("detect-objects", "--model", "other.prototxt", "--weights", "other.caffemodel", "some/a.png")
    assert "other.prototxt" in done.fatal and problem in done.fatal


def test_only_a_test_needs_the_files_of_a_published_net(run: Run) -> None:
    files = 'output_directory: "out" output_format: "VOC" label_map_file: "none" name_size_file: "none"'
    Path("net.prototxt").write_text(NET.replace("num_classes: 3", f"num_classes: 3 save_output_param {{ {files} }}"))
    for words in (
        ["detect-objects", *MODEL, "some/a.png"],
        ["time", *MODEL[:2], "--phase", "TEST", "--iterations", "1"],
        ["summary", "net.prototxt", "--phase", "TEST"],
    ):
        assert run(*words).code == 0, words
    assert "none does not exist" in run("test", *MODEL, "--iterations", "1").fatal
    assert not Path("out").exists()


def test_predict_is_another_face_of_it(run: Run) -> None:
    words = [*MODEL, "--threshold", "0.2", "some/a.png", "some/b.jpg"]
    expected = run("detect-objects", *words).out
    assert run("predict", "--mean", "104,117,123", *words).out == expected and len(expected.splitlines()) == 6
    Path("cut.jpg").write_bytes(Path("some/b.jpg").read_bytes()[:200])
    bad = run("predict", "--mean", "104,117,123", *MODEL, "cut.jpg", "some/a.png")
    assert bad.code == 1 and "truncated" in bad.err and "some/a.png" in bad.out


def test_predict_shows_the_classes_of_pixels(run: Run) -> None:
    Path("pixels.prototxt").write_text(
        """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } }
          transform_param { mean_value: 100 } }
        layer { name: "scores" type: "Convolution" bottom: "data" top: "scores"
          convolution_param { num_output: 2 kernel_size: 1 } }
        layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" }
        """
    )
    net = Net("pixels.prototxt", session.TEST)
    net.params["scores"][0].data[1, 0] = 1  # class 1 where blue is above the mean
    net.save("pixels.caffemodel")
    Path("labels.txt").write_text("ground\nwater\n")
    pixels = np.zeros((3, 16, 16), np.uint8)
    pixels[0, :4] = 255
    Path("half.png").write_bytes(encode_image(pixels, "png"))
    words = ["--model", "pixels.prototxt", "--weights", "pixels.caffemodel", "--labels", "labels.txt"]
    made = run("predict", *words, "--out", "drawn", "half.png")
    assert (made.code, made.out) == (0, "half.png: ground 75.0%  water 25.0%\n"), made.err
    drawn = decode_image(Path("drawn/half.png").read_bytes(), "it")
    assert len(np.unique(drawn.reshape(3, -1), axis=1).T) == 2 and (drawn[:, 0] != drawn[:, 15]).any()
