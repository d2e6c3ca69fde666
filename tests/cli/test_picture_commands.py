"""`fcaffe draw_net`, `fcaffe classify` and `fcaffe detect`, with the arguments of Caffe's programs of these names."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.cli import pictures
from fcaffe.data.images import encode_image
from fcaffe.data.mean import mean_to_blob
from fcaffe.proto import write_binary
from fcaffe.pycaffe import io, session
from fcaffe.pycaffe.classifier import Classifier
from fcaffe.pycaffe.detector import Detector
from fcaffe.pycaffe.net import Net
from tests.cli.conftest import NET as TRAINING
from tests.cli.conftest import Run
from tests.conftest import GOLDEN

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
MODEL = ["--model_def", "net.prototxt", "--pretrained_model", "net.caffemodel"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a deploy net, its weights, a mean and three pictures."""
    pytest.importorskip("cv2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_on_gpu", False)
    Path("net.prototxt").write_text(NET)
    Net("net.prototxt", session.TEST).save("net.caffemodel")
    np.save("mean.npy", np.full((3, 8, 8), 100.0))
    random = np.random.default_rng(0)
    Path("some").mkdir()
    for name in "bac":
        picture = random.integers(0, 256, (3, 20, 24), np.uint8)
        Path(f"some/{name}.png").write_bytes(encode_image(picture, "png"))


def classifier(**settings: Any) -> Classifier:
    files = ("net.prototxt", "net.caffemodel")
    return Classifier(*files, **{"mean": np.load("mean.npy"), "raw_scale": 255, "channel_swap": [2, 1, 0], **settings})


def test_a_net_is_drawn(run: Run) -> None:
    Path("training.prototxt").write_text(TRAINING)
    made = run("draw_net", "training.prototxt", "x.svg", "--rankdir", "TB")
    assert (made.code, made.out) == (0, "Drawing net to x.svg\n")
    assert "accuracy (Accuracy)" in Path("x.svg").read_text()
    assert run("draw_net", "-phase=TRAIN", "-display_lrm", "training.prototxt", "y.raw").code == 0
    assert "Accuracy" not in Path("y.raw").read_text() and "lr mult: 1.0, 1.0" in Path("y.raw").read_text()
    for model, flags, direction in (("lenet", (), "LR"), ("lenet", ("--rankdir", "BT"), "BT")):
        assert (
            run("draw_net", str(GOLDEN.parents[1] / "models" / model / "train_val.prototxt"), "z.raw", *flags).code == 0
        )
        assert f'rankdir="{direction}"' in Path("z.raw").read_text()
    net = str(GOLDEN.parents[1] / "models" / "googlenet" / "deploy.prototxt")
    assert "--rankdir TB draws it downwards" in run("draw_net", net, "z.raw").out
    assert "--rankdir TB" not in run("draw_net", net, "z.raw", "--rankdir", "TB").out
    assert 'phase must be "TRAIN", "TEST" or "ALL"' in run("draw_net", "net.prototxt", "x.svg", "--phase", "x").fatal


def test_a_folder_is_classified_in_the_order_of_names(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["classify", *MODEL, "--mean_file", "mean.npy", "--images_dim", "10,12", "--ext", "png", "some", "out"]
    made = run(*words)
    assert made.code == 0
    lines = made.out.splitlines()
    assert lines[:3] == ["CPU mode", "Loading folder: some", "Classifying 3 inputs."]
    assert lines[3].startswith("Done in ") and lines[4:] == ["Saving results into out"]
    given = [io.load_image(f"some/{name}.png") for name in "abc"]
    assert np.array_equal(np.load("out.npy"), classifier(image_dims=[10, 12]).predict(given))
    assert run(*words, "--center_only", "--input_scale", "0.5").code == 0
    expected = classifier(image_dims=[10, 12], input_scale=0.5).predict(given, False)
    assert np.array_equal(np.load("out.npy"), expected)


def test_a_file_and_an_array_are_classified(run: Run) -> None:
    words = ["classify", *MODEL, "--mean_file", "", "--channel_swap=", "-raw_scale", "1"]
    assert "Loading file: some/a.png\n" in run(*words, "some/a.png", "a.npy").out
    pictures = np.stack([io.load_image(f"some/{name}.png") for name in "abcabc"])
    np.save("in.npy", pictures)
    assert run(*words, "in.npy", "all.npy").code == 0
    assert np.load("all.npy").shape == (6, 5) and np.array_equal(np.load("all.npy")[:1], np.load("a.npy"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["some", "x.npy"], r"there is no *.jpg in the folder some"),
        (["mean.npy", "x.npy"], "has the shape (3, 8, 8); pictures are N x height x width x channels"),
        (["some/a.png", "x.npy", "--images_dim", "256"], "--images_dim takes a height and a width, not '256'"),
        (["some/a.png", "x.npy", "--channel_swap", "b,g,r"], "--channel_swap takes numbers with commas"),
        (
            ["some/a.png", "x.npy", "--mean_file", "net.prototxt"],
            "net.prototxt is text, perhaps a prototxt; a blob (.binaryproto) is wanted",
        ),
        (["some/a.png", "nowhere/x.npy"], "cannot write nowhere/x.npy"),
    ],
)
def test_what_cannot_be_classified(words: list[str], message: str, run: Run) -> None:
    assert message in run("classify", *MODEL, "--mean_file", "mean.npy", *words).fatal


def test_gpu_is_a_switch_here_and_a_list_elsewhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(pictures.session, "set_mode_gpu", lambda: asked.append(True))
    made = run("classify", *MODEL, "--gpu", "--mean_file", "mean.npy", "some/a.png", "x.npy")
    assert made.out.startswith("GPU mode\n") and asked == [True]
    assert "--gpu 7" in run("time", "--gpu", "7", "--model", "net.prototxt").err


def test_windows_of_a_list_are_detected(run: Run) -> None:
    Path("in.csv").write_text(
        "filename, xmin, ymin, xmax, ymax\nsome/a.png,2,3,12,13\nsome/b.png,0,0,24,20\n\nsome/a.png,5.0,5,9,9\n"
    )
    words = ["detect", *MODEL, "in.csv", "out.csv", "--crop_mode", "list", "--mean_file", "mean.npy"]
    made = run(*words, "--context_pad", "2")
    assert made.code == 0, made.err
    assert [line.partition(" in ")[0] for line in made.out.splitlines()] == [
        *("CPU mode", "Loading input...", "Processed 3 windows", "Saved to out.csv")
    ]
    with open("out.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["filename", "ymin", "xmin", "ymax", "xmax", *(f"class{n}" for n in range(5))]
    assert [row[:5] for row in rows[1:]] == [
        ["some/a.png", "3", "2", "13", "12"],
        ["some/a.png", "5", "5", "9", "9"],
        ["some/b.png", "0", "0", "20", "24"],
    ]
    detector = Detector(
        *("net.prototxt", "net.caffemodel"),
        mean=np.full(3, 100.0),
        raw_scale=255,
        channel_swap=[2, 1, 0],
        context_pad=2,
    )
    found = detector.detect_windows([("some/a.png", [(3, 2, 13, 12)])])
    assert np.allclose(np.array(rows[1][5:], float), found[0]["prediction"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["in.csv", "x.h5", "--crop_mode", "list"],
            "needs pandas and PyTables: pip install pandas tables; or name a",
        ),
        (["in.txt", "x.csv"], "needs MATLAB and the Python module selective_search_ijcv_with_python"),
        (["in.txt", "x.csv", "--crop_mode", "list"], "in.txt: with --crop_mode list the input is a .csv"),
        (["in.csv", "x.csv", "--crop_mode", "list"], "in.csv: its first line names no column xmax, ymin"),
        (["bad.csv", "x.csv", "--crop_mode", "list"], "bad.csv:2: a window is four numbers"),
    ],
)
def test_what_cannot_be_detected(words: list[str], message: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tables", "selective_search_ijcv_with_python"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    Path("in.csv").write_text("filename,xmin,ymax\n")
    Path("bad.csv").write_text("filename,ymin,xmin,ymax,xmax\nsome/a.png,1,2,three,4\n")
    Path("in.txt").write_text("some/a.png\n")
    context = ["--context_pad", "2"]
    assert message in run("detect", *MODEL, "--mean_file", "", *context, *words).fatal


def test_any_mean_capital_endings_and_names(run: Run) -> None:
    """Values, a .npy and a .binaryproto give the same scores; the flags have the names of Caffe's other commands."""
    write_binary("mean.binaryproto", mean_to_blob(np.full((3, 8, 8), 100, np.float32)))
    Path("some/a.png").rename("some/A.PNG")
    Path("labels.txt").write_text("".join(f"class {index}\n" for index in range(5)))
    scores = []
    for mean in ("mean.npy", "mean.binaryproto", "100,100,100"):
        words = ["--model", "net.prototxt", "--weights", "net.caffemodel", "--mean", mean, "--images_dim", "8,8"]
        made = run("classify", *words, "--center_only", "--ext", "png", "some", "out")
        assert made.code == 0, made.err
        scores.append(np.load("out.npy"))
    assert scores[0].shape == (3, 5) and all(np.allclose(one, scores[0], atol=1e-6) for one in scores)
    best = scores[0].argmax(axis=1)
    for path, index in zip(("some/A.PNG", "some/b.png", "some/c.png"), best, strict=True):
        assert f"{path}  class {index} " in made.out
