"""The mean average precision of detectors, against SSD's code, in tests during training and in `fcaffe test`."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from fcaffe.cli import main
from fcaffe.errors import SolverError
from fcaffe.solvers.evaluation import AP_VERSIONS, Detections, average_precision
from tests.conftest import GOLDEN
from tests.golden_values import assert_close

CASES = json.loads((GOLDEN / "forks" / "average_precision.json").read_text())

# A net whose "detections" in two batches of an HDF5 file are given, and a weight to train.
NET = """
layer { name: "data" type: "HDF5Data" top: "found" top: "objects" top: "x"
  hdf5_data_param { source: "files.txt" batch_size: 1 } }
layer { name: "eval" type: "DetectionEvaluate" bottom: "found" bottom: "objects" top: "mAP" include { phase: TEST }
  detection_evaluate_param { num_classes: 4 } }
layer { name: "silent" type: "Silence" bottom: "found" bottom: "objects" include { phase: TRAIN } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 include { phase: TRAIN } }
layer { name: "quiet" type: "Silence" bottom: "y" include { phase: TEST } }
"""
SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 test_iter: 2 test_interval: 9
eval_type: "detection" """

BOX = (0.1, 0.1, 0.5, 0.5)
OTHER = (0.6, 0.6, 0.9, 0.9)
FOUND = [  # of each batch: image, label, score, box
    [(0, 1, 0.9, *BOX), (0, 1, 0.8, *OTHER), (0, 2, 0.7, *BOX)],
    [(0, 1, 0.6, *OTHER), (0, 2, 0.9, *OTHER), (0, 2, 0.3, *BOX)],
]
OBJECTS = [[(0, 1, 0, *BOX, 0), (0, 2, 0, *BOX, 0)], [(0, 1, 0, *OTHER, 0), (0, 2, 0, *BOX, 0)]]
# Class 1: true 0.9, false 0.8, true 0.6; class 2: false 0.9, true 0.7, true 0.3; class 3: nothing.
PRECISIONS = {"Integral": (1 / 2 + 1 / 3, 1 / 4 + 1 / 3, 0), "MaxIntegral": (1 / 2 + 1 / 3, 1 / 3 + 1 / 3, 0)}


@pytest.mark.parametrize("version", AP_VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=[f"{index}-{case['positives']}" for index, case in enumerate(CASES)])
def test_average_precision_is_that_of_ssd(case, version):
    rows = np.array(case["score_true_false"], np.float32).reshape(-1, 3)
    rows = rows[rows[:, 1] + rows[:, 2] > 0]
    ours = average_precision(rows[:, 0], rows[:, 1] > 0, case["positives"], version)
    assert_close(np.float32(ours), np.float32(case["average_precision"][version]), version)


def test_detections_of_difficult_objects_count_for_nothing():
    counted = Detections("Integral", per_class=False)
    counted.add(np.array([[-1, 1, 1, -1, -1], [0, 1, 0.9, 0, 0], [0, 1, 0.8, 1, 0]], np.float32).reshape(-1))
    assert counted.result() == [1]


def test_rows_of_yolo_are_those_of_ssd_in_another_form():
    random = np.random.default_rng(1)
    counts, scores = random.integers(1, 5, (3, 2)), random.random((3, 4))
    labels, true = random.integers(0, 2, (3, 4)), random.integers(0, 2, (3, 4))
    found = np.stack([labels, scores, true, 1 - true], axis=2)
    found[:, -1] = 0  # unused
    results = []
    for rows, counted in (
        (np.concatenate([counts, found.reshape(3, 16)], axis=1), Detections("Integral", False, 2, 18)),
        (
            [
                *((-1, label, counts[:, label].sum(), -1, -1) for label in (0, 1)),
                *np.insert(found.reshape(12, 4), 0, 0, 1),
            ],
            Detections("Integral", False),
        ),
    ):
        counted.add(np.array(rows, np.float32).reshape(-1))
        results.append(counted.result())
    assert results[0] == results[1] > 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    with h5py.File("data.h5", "w") as file:
        file["found"] = np.array(FOUND, np.float32).reshape(2, 1, 3, 7)
        file["objects"] = np.array(OBJECTS, np.float32).reshape(2, 1, 2, 8)
        file["x"] = np.ones((2, 1), np.float32)
    (tmp_path / "files.txt").write_text("data.h5\n")
    (tmp_path / "net.prototxt").write_text(NET)
    return tmp_path


@pytest.mark.parametrize("version", PRECISIONS)
def test_solver_and_test_report_it(version, folder, capfd):
    (folder / "solver.prototxt").write_text(f'{SOLVER} ap_version: "{version}" show_per_class_result: true')
    assert main(["train", "--solver", "solver.prototxt"]) == 0
    trained = capfd.readouterr().err
    expected = PRECISIONS[version]
    assert re.findall(r"\] class(\d): (\S+)", trained) == [(str(n + 1), f"{p:.6g}") for n, p in enumerate(expected)]
    mean = f"{np.mean(expected):.6g}"
    assert re.findall(r"Test net output #(\d): (\S+) = (\S+)\n", trained) == [("0", "mAP", mean)]
    assert "Missing true_pos for label: 3" in trained
    flags = ["--iterations", "2", "--ap-version", version, "--per-class"]
    assert main(["test", "--model", "net.prototxt", "--weights", "solver_iter_1.caffemodel", *flags]) == 0
    tested = capfd.readouterr().err
    assert f"] mAP = {mean}\n" in tested
    assert len(re.findall(r"\] class\d: ", tested)) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('eval_type: "segmentation"', 'eval_type is "classification" or "detection"'),
        ('eval_type: "detection" ap_version: "10point"', "ap_version is one of Integral, MaxIntegral, 11point"),
    ],
)
def test_solver_fields(fields, message, folder, solver_from):
    with pytest.raises(SolverError, match=message):
        solver_from(SOLVER.replace('eval_type: "detection"', fields))


def test_a_worker_that_needs_all_images_in_order_tests_alone(folder):
    """In the second image, of 2 x 2 pixels, a box is near enough to its object that would not be in a large one."""
    with pytest.importorskip("h5py").File("data.h5", "r+") as file:
        file["found"][1, 0, 0, 3:5] = 0.55
    (folder / "sizes.txt").write_text("a 1000 1000\nb 2 2\n")
    net = NET.replace("num_classes: 4", 'num_classes: 4 overlap_threshold: 0.75 name_size_file: "sizes.txt"')
    data, rest = net.split("layer {", 2)[1:]
    phases = [f"layer {{ include {{ phase: {phase} }} {data}" for phase in ("TEST", "TRAIN")]
    phases[1] = phases[1].replace("batch_size: 1", "batch_size: 2")
    (folder / "net.prototxt").write_text(f"{''.join(phases)} layer {{{rest}")
    (folder / "solver.prototxt").write_text(f"{SOLVER} show_per_class_result: true snapshot_after_train: false")
    results = []
    for workers in "12":
        done = subprocess.run(
            [sys.executable, "-m", "fcaffe", "train", "--solver", "solver.prototxt", "--workers", workers],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        results.append(re.findall(r"(?:class\d+:|mAP =) \S+", done.stderr))
    assert "Worker 0 runs test net #0 alone" in done.stderr
    assert results[0][0] == "class1: 0.833333" and results[0] == results[1]


def test_a_net_without_detections_cannot_be_evaluated(folder, solver_from):
    (folder / "net.prototxt").write_text(
        NET.replace('type: "DetectionEvaluate"', 'type: "Silence"').replace('top: "mAP"', "")
    )
    with pytest.raises(SolverError, match="needs an output of DetectionEvaluate or EvalDetection in test net #0"):
        solver_from(SOLVER)


def test_an_output_that_changes_its_size_has_no_mean(solver_from, capfd):
    """A DetectionOutput finds another number of boxes in each batch."""
    solver = solver_from("""net_param {
      layer { name: "data" type: "DummyData" top: "codes" top: "scores" top: "priors" dummy_data_param {
        shape { dim: 1 dim: 64 } shape { dim: 1 dim: 32 } shape { dim: 1 dim: 2 dim: 64 }
        data_filler { type: "gaussian" } data_filler { type: "gaussian" } data_filler { type: "uniform" } } }
      layer { name: "found" type: "DetectionOutput" bottom: "codes" bottom: "scores" bottom: "priors" top: "rows"
        include { phase: TEST } detection_output_param { num_classes: 2 confidence_threshold: 0.5 } } }
      base_lr: 0.1 lr_policy: "fixed" test_iter: 5 test_interval: 1 random_seed: 1""")
    solver.test_all()
    log = capfd.readouterr().err
    assert log.count('The output "rows" has no mean') == 1 and "Test net output" not in log
