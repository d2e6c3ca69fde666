"""From a folder of pictures to predictions: `fcaffe dataset`, `new`, `train`, `predict` and `deploy`."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fcaffe
from fcaffe import log
from fcaffe.data import open_database
from fcaffe.data.datum import datum_to_array, parse_datum
from fcaffe.data.form import read_form
from fcaffe.data.mean import read_mean
from fcaffe.errors import DataError
from fcaffe.proto import read_net, read_solver
from fcaffe.tools.listing import list_pictures
from fcaffe.tools.new_net import read_data, write_project
from fcaffe.tools.template import models_folder, read_template
from tests.cli.conftest import Run
from tests.pictures import CLASSES, write_pictures

SIDE = 16
FILES = ["info.json", "labels.txt", "mean.binaryproto", "test.txt", "test_lmdb", "train.txt", "train_lmdb"]

pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(path: str) -> list[tuple[np.ndarray, int]]:
    with log.quiet():
        database = open_database(path)
    found = [(datum_to_array(datum), datum.label) for datum in (parse_datum(key, value) for key, value in database)]
    database.close()
    return found


def test_four_commands_give_predictions_as_good_as_the_last_test(run: Run) -> None:
    write_pictures(Path("pictures"), each=12)
    made = run("dataset", "pictures", "data", "--size", f"{SIDE}x{SIDE}", "--test", "25%")
    assert made.code == 0, made.err
    assert sorted(os.listdir("data")) == FILES
    for words in (
        "Left out, truncated (3): ",
        "Left out, empty (3): ",
        "Left out, no picture, or damaged (3): ",
        "3 hidden files",
        "upright",
    ):
        assert words in made.out
    assert re.search(r"blaue Blüte +0 +9 +3 .* 1, 3", made.out), made.out
    made = run("new", "flowers", "--data", "data", "--net", "cifar10_quick", "--epochs", "12", "--base-lr", "0.002")
    assert made.code == 0, made.err
    command = made.out.splitlines()[-1].removeprefix("Next: fcaffe ")
    trained = run(*command.split(), "--keep-best", "accuracy")
    assert trained.code == 0 and Path("report.html").exists(), trained.err
    best = re.findall(r"Best accuracy so far: ([\d.]+), kept as (\S+)", trained.err)[-1]
    lines = [line.rsplit(" ", 1) for line in Path("data/test.txt").read_text().splitlines()]
    told = run("predict", "--solver", "flowers/solver.prototxt", "data/test.txt", "--csv", "out.csv")
    assert told.code == 0, told.err
    right, total = map(int, re.search(r"(\d+) of (\d+) are right", told.out).groups())  # type: ignore[union-attr]
    assert total == len(lines) and right / total == pytest.approx(float(best[0]), abs=1e-5)
    assert best[1] in told.err
    rows = list(csv.DictReader(io.StringIO(Path("out.csv").read_text(encoding="utf-8"))))
    assert [row["path"] for row in rows] == [f"pictures/{path}" for path, _ in lines]
    assert sum(row["label"] == list(CLASSES)[int(label)] for row, (_, label) in zip(rows, lines, strict=True)) == right
    for words in (["--solver", "flowers/solver.prototxt"], ["--model", "flowers", "--weights", best[1]]):
        others = run("predict", *words, "data/test_lmdb", "--json")
        assert others.code == 0, others.err
        found = [one["predictions"][0] for one in json.loads(others.out)]
        assert [one["label"] for one in found] == [row["label"] for row in rows]
        values = [float(row["probability"]) for row in rows]
        np.testing.assert_allclose([one["probability"] for one in found], values, atol=1e-5)
    bad = run("predict", "--solver", "flowers/solver.prototxt", "pictures/rose", "--html", "page.html")
    page = Path("page.html").read_text()
    assert page.count("<img") >= 13 and "samples are right" in page and "Bild 0 ä.png" in page
    assert bad.code == 1 and len(re.findall(r"^E.*(truncated|empty|no picture)", bad.err, re.MULTILINE)) == 3
    steps = run("predict", "--solver", "flowers/solver.prototxt", "--explain", f"pictures/{lines[0][0]}")
    assert steps.code == 0 and re.search(r"minus +3 x 16 x 16 .mean_file data/mean.binaryproto", steps.out)
    made = run("deploy", "flowers/train_val.prototxt", "deploy.prototxt")
    assert made.code == 0 and read_net("deploy.prototxt") == read_net("flowers/deploy.prototxt")


def test_the_records_are_those_of_convert_imageset(run: Run) -> None:
    """The lists that are beside them, given to convert_imageset, make the same records; the mean is theirs."""
    write_pictures(Path("pictures"))
    assert run("dataset", "pictures", "data", "--size", "10x14").code == 0
    for part in ("train", "test"):
        words = ["--resize_height=10", "--resize_width=14", "pictures/", f"data/{part}.txt", f"again_{part}"]
        assert run("convert_imageset", *words).code == 0
        ours, theirs = records(f"data/{part}_lmdb"), records(f"again_{part}")
        assert [label for _, label in ours] == [label for _, label in theirs]
        for (array, _), (other, _) in zip(ours, theirs, strict=True):
            assert np.array_equal(array, other)
    images = np.stack([array for array, _ in records("data/train_lmdb")])
    np.testing.assert_allclose(read_mean("data/mean.binaryproto"), images.mean(axis=0, dtype=np.float64), rtol=1e-6)
    form, fields = read_form("data")
    assert form is not None and form.size == (10, 14) and fields["image dimensions"] == [10, 14, 3]


def test_killed_at_any_moment_it_leaves_nothing_half() -> None:
    write_pictures(Path("pictures"), each=20)
    command = [sys.executable, "-m", "fcaffe", "dataset", "pictures", "data", "--size", "64x64"]
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - start
    for share in (0.5, 0.8, 0.95):
        subprocess.run(["rm", "-rf", "data"], check=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(share * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not Path("data").exists() or sorted(os.listdir("data")) == FILES
    subprocess.run(["rm", "-rf", "data"], check=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert sorted(os.listdir(".")) == ["data", "pictures"], "what killed processes left has gone"


CLASSIFIERS = sorted(
    path.parent.name for path in models_folder().glob("*/train_val.prototxt") if "SoftmaxWithLoss" in path.read_text()
)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_each_classifier_of_models_gets_the_classes_of_the_data(name: str, run: Run) -> None:
    _sample_data(run)
    data = read_data("data")
    project = write_project("x", data, read_template(name), "", 3, "poly", None, None)
    assert all(Path(path).exists() for path in project.files)
    solver, net = read_solver("x/solver.prototxt"), read_net("x/train_val.prototxt")
    ends = [layer for layer in net.layer if layer.name.endswith("_x")]
    assert {(layer.convolution_param.num_output or layer.inner_product_param.num_output) for layer in ends} == {3}
    assert len(ends) == sum(layer.type == "SoftmaxWithLoss" for layer in net.layer)
    test_batch = next(layer.data_param.batch_size for layer in net.layer if "test" in layer.data_param.source)
    assert solver.test_iter[0] * test_batch == data.test
    assert (
        run("new", "x", "--data", "data", "--net", name).fatal == '"x" exists already: delete it or name another folder'
    )


@pytest.mark.parametrize("name", ["cifar10_quick", "digits", "squeezenet_v1.1"])
def test_weights_are_finetuned(name: str, run: Run) -> None:
    """All layers but the ends start from the weights, and learn at a tenth of the rate."""
    _sample_data(run)
    data = read_data("data")
    write_project("x", data, read_template(name), "", 1, "multistep", 4, None)
    assert run("train", "--solver", "x/solver.prototxt").code == 0
    model = sorted(Path("x").glob("*.caffemodel"))[-1]
    made = write_project("finetuned", data, read_template("x/train_val.prototxt"), str(model), 1, "cosine", 4, 0.01)
    tuned = run("train", "--solver", "finetuned/solver.prototxt", "--weights", made.weights)
    assert tuned.code == 0
    fresh = re.findall(r"has no weights for the layer\(s\) (\S+): ", tuned.err)
    net = read_net("finetuned/train_val.prototxt")
    own = {layer.name for layer in net.layer if layer.name.endswith("_finetuned")}
    assert set(fresh) == own and len(own) == 1
    rates = {round(spec.lr_mult, 3) for layer in net.layer if layer.name not in own for spec in layer.param}
    assert rates and rates <= {0.1, 0.2}


def _sample_data(run: Run) -> None:
    write_pictures(Path("pictures"), each=5, side=64)
    assert run("dataset", "pictures", "data", "--size", "96x96").code == 0


def test_too_small_pictures_are_refused_with_the_least_size(run: Run) -> None:
    write_pictures(Path("pictures"), each=4)
    assert run("dataset", "pictures", "data", "--size", "8x8").code == 0
    problem = run("new", "x", "--data", "data", "--net", "alexnet").fatal
    least = int(re.search(r"at least (\d+) x", problem)[1])  # type: ignore[index]
    assert f"--size {least}x{least}" in problem and not Path("x").exists()
    for side, code in ((least - 1, 134), (least, 0)):
        assert run("dataset", "pictures", f"data{side}", "--size", f"{side}x{side}").code == 0
        assert run("new", f"x{side}", "--data", f"data{side}", "--net", "alexnet").code == code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,kind,color\na.png,rose,red\n", "kind, color: say by --label-column"),
        ("path,kind,color\na.png,rose,red\n", 'no column "size"; its columns are path, kind, color'),
        ("a.png\n", "has no label"),
        ("", "is empty"),
    ],
)
def test_unclear_tables_are_refused_by_name(text: str, words: str) -> None:
    Path("table.csv").write_text(text)
    with pytest.raises(DataError, match=re.escape(words)):
        list_pictures("table.csv", (), "size" if "size" in words else "")
    Path("table.csv").write_text("path,kind,color\na.png,rose,red\nb.png,tulip,red\n")
    assert list_pictures("table.csv", (), "color").names == ["red"]


def test_folders_for_training_and_validation(run: Run) -> None:
    for part in ("train", "valid", "test"):
        write_pictures(Path("pictures", part), each=4)
    made = run("dataset", "pictures", "data", "--size", "8x8")
    assert made.code == 0 and "Left out: the folder pictures/test" in made.out
    assert "In both train and test, which makes the tests look better" in made.out
    assert len(records("data/train_lmdb")) == len(records("data/test_lmdb")) == 13
    Path("pictures/valid/daisy").mkdir()
    assert '"daisy"' in run("dataset", "pictures", "other", "--size", "8x8").fatal and not Path("other").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none", "data"], "none"),
        (["pictures", "data"], "such as --size 96x96"),
        (["pictures", "full", "--size", "8x8"], '"full" exists already'),
        (["pictures/rose", "data", "--size", "8x8"], "no picture to train with"),
        (["pictures", "data", "--size", "8"], None),
        (["pictures", "data", "--size", "8x"], "--size takes a height and a width"),
        (["pictures", "data", "--size", "8x8", "--test", "120%"], "--test takes a share"),
        (["pictures", "data", "--size", "8x8", "--classes", "names.txt"], '"rose"'),
    ],
)
def test_wrong_input_gives_one_line(words: list[str], told: str | None, run: Run) -> None:
    write_pictures(Path("pictures"), each=4)
    Path("full").mkdir()
    Path("full/file").touch()
    Path("names.txt").write_text("tulip\nblaue Blüte\n")
    Path("pictures/rose/empty folder").mkdir()
    made = run("dataset", *words)
    if told is None:
        assert made.code == 0
    else:
        assert told in made.fatal and not Path("data").exists()


def test_a_net_of_pytorch_sees_what_it_was_trained_on(run: Run) -> None:
    """`convert` notes what pictures were to it, and `new` turns that into mean values and first weights."""
    pytest.importorskip("onnx", reason="the onnx extra is not installed")
    from tests.tools.onnx_graphs import model_of

    model = model_of(
        "c = Conv <pads = [1, 1, 1, 1]> (input, w, b) r = Relu (c) p = GlobalAveragePool (r) f = Flatten (p) "
        "y = Gemm <transB = 1> (f, k, kb)",
        {"input": (1, 3, 16, 16)},
        {"w": (6, 3, 3, 3), "b": (6,), "k": (1000, 6), "kb": (1000,)},
    )
    model.producer_name = "pytorch"
    Path("torch.onnx").write_bytes(model.SerializeToString())
    assert run("convert", "torch.onnx", "torch.prototxt", "torch.caffemodel").code == 0
    write_pictures(Path("pictures"), each=4)
    assert run("dataset", "pictures", "data", "--size", "16x16").code == 0
    made = run("new", "tuned", "--data", "data", "--net", "torch.prototxt", "--weights", "torch.caffemodel")
    assert made.code == 0, made.err
    words = made.out.splitlines()[-1].removeprefix("Next: fcaffe ").split()
    assert run(*words[:5]).code == 0
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16), np.uint8)  # blue, green, red
    theirs = fcaffe.Net("torch.prototxt", fcaffe.TEST, weights="torch.caffemodel")
    mean, deviation = (np.array(numbers)[:, None, None] for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    theirs.blobs["input"].data[...] = (pixels[::-1] / 255 - mean) / deviation
    theirs.forward()
    ours = fcaffe.Net("tuned/deploy.prototxt", fcaffe.TEST, weights="tuned/weights.caffemodel")
    with fcaffe.Predictor(model="tuned/deploy.prototxt", weights="tuned/weights.caffemodel") as predictor:
        ours.blobs["input"].data[...] = predictor.load(pixels.transpose(1, 2, 0), "BGR")
    ours.forward()
    first = next(layer for layer in read_net("tuned/deploy.prototxt").layer if layer.type == "Convolution")
    np.testing.assert_allclose(ours.blobs[first.top[0]].data, theirs.blobs[first.top[0]].data, rtol=1e-3, atol=1e-4)
    weights = [
        net.params[first.name][0].data.std() for net in (ours, theirs)
    ]  # much smaller ones would train much faster
    assert weights[0] == pytest.approx(weights[1], rel=0.1)
