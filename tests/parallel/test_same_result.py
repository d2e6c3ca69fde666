"""Several workers on one batch do what one worker does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcaffe.data import array_to_datum
from fcaffe.data.backends import new_database
from fcaffe.proto import caffe_pb2 as pb
from tests.conftest import GOLDEN
from tests.golden_data import make_mnist_lmdbs
from tests.parallel.conftest import needs_mpi, run_ranks

pytestmark = needs_mpi

# BatchNorm over the whole batch, labels that are ignored (so that each worker's count differs), shared weights, a batch
# that does not divide evenly, an accuracy among the outputs, and outputs of varying length, which workers gather.
NORMALIZED = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
        transform_param { scale: 0.0078125 crop_size: 24 mirror: true }
        data_param { source: "train_lmdb" backend: LMDB batch_size: 22 } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
        transform_param { scale: 0.0078125 crop_size: 24 }
        data_param { source: "test_lmdb" backend: LMDB batch_size: 10 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 6 kernel_size: 5 stride: 2 weight_filler { type: "xavier" } bias_term: false } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" dropout_param { dropout_ratio: 0.2 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" param { name: "w" } param { name: "b" }
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "again" type: "InnerProduct" bottom: "conv" top: "again" param { name: "w" } param { name: "b" }
        inner_product_param { num_output: 10 } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss"
        loss_param { ignore_label: 3 } }
layer { name: "size" type: "Reduction" bottom: "again" top: "size" loss_weight: 0.01
        reduction_param { operation: MEAN } }
"""
NORMALIZED += "".join(
    f'layer {{ name: "to_{name}" type: "Power" bottom: "label" top: "{name}" power_param {{ scale: {10**index} }} }}'
    f'layer {{ name: "some_{name}" type: "Filter" bottom: "{name}" bottom: "label" top: "some_{name}" }}'
    for index, name in enumerate("abcd")
)
SOLVER = """
net: "normalized.prototxt" base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 iter_size: 2
display: 5 max_iter: 100 random_seed: 3 snapshot_prefix: "run" test_iter: 7 test_interval: 10
"""

# Images with one to three boxes; the number of matches, by which the loss is divided, differs between workers.
DETECTION = """
layer { name: "data" type: "AnnotatedData" top: "data" top: "label" include { phase: TRAIN }
        transform_param { scale: 0.0078125 mirror: true resize_param { height: 24 width: 24 } }
        data_param { source: "boxes_lmdb" backend: LMDB batch_size: 9 }
        annotated_data_param { batch_sampler { sampler { min_scale: 0.6 } max_sample: 1 max_trials: 5 } } }
layer { name: "data" type: "AnnotatedData" top: "data" top: "label" include { phase: TEST }
        transform_param { scale: 0.0078125 } data_param { source: "boxes_lmdb" backend: LMDB batch_size: 4 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 8 kernel_size: 8 stride: 4 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "codes" type: "InnerProduct" bottom: "conv" top: "codes"
        inner_product_param { num_output: 576 weight_filler { type: "xavier" } } }
layer { name: "scores" type: "InnerProduct" bottom: "conv" top: "scores"
        inner_product_param { num_output: 432 weight_filler { type: "xavier" } } }
layer { name: "priors" type: "PriorBox" bottom: "conv" bottom: "data" top: "priors"
        prior_box_param { min_size: 6 max_size: 10 aspect_ratio: 2 } }
layer { name: "loss" type: "MultiBoxLoss" bottom: "codes" bottom: "scores" bottom: "priors" bottom: "label" top: "loss"
        multibox_loss_param { num_classes: 3 code_type: CENTER_SIZE } include { phase: TRAIN }
        propagate_down: true propagate_down: true propagate_down: false propagate_down: false }
layer { name: "rows" type: "Reshape" bottom: "scores" top: "rows" include { phase: TEST }
        reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "softmax" type: "Softmax" bottom: "rows" top: "softmax" include { phase: TEST }
        softmax_param { axis: 2 } }
layer { name: "flat" type: "Flatten" bottom: "softmax" top: "flat" include { phase: TEST } }
layer { name: "found" type: "DetectionOutput" bottom: "codes" bottom: "flat" bottom: "priors" top: "found"
        detection_output_param { num_classes: 3 code_type: CENTER_SIZE keep_top_k: 20 } include { phase: TEST } }
layer { name: "precision" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "precision"
        detection_evaluate_param { num_classes: 3 overlap_threshold: 0.3 } include { phase: TEST } }
"""


def make_boxes(path: Path) -> None:
    """An LMDB of noise with one to three rectangles, dark or bright, which are class 1 and 2."""
    random = np.random.default_rng(5)
    with new_database(str(path), "lmdb") as writer:
        for index in range(30):
            image, record = random.integers(90, 160, (1, 24, 24), np.uint8), pb.AnnotatedDatum(type=0)
            for number in range(random.integers(1, 4)):
                (x, y), (width, height), label = (
                    random.integers(0, 16, 2),
                    random.integers(5, 9, 2),
                    random.integers(1, 3),
                )
                image[:, y : y + height, x : x + width] = 255 * (label - 1)
                found = record.annotation_group.add(group_label=label).annotation.add(instance_id=number)
                corners = np.array([x, y, x + width, y + height]) / 24
                found.bbox.xmin, found.bbox.ymin, found.bbox.xmax, found.bbox.ymax = corners
            record.datum.CopyFrom(array_to_datum(image))
            writer.put(b"%03d" % index, record.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    make_mnist_lmdbs(path)
    mixed = GOLDEN / "runs" / "mixed"
    (path / "net.prototxt").write_bytes((mixed / "net.prototxt").read_bytes())
    (path / "mixed.prototxt").write_bytes((mixed / "solver.prototxt").read_bytes())
    (path / "normalized.prototxt").write_text(NORMALIZED)
    (path / "normal.prototxt").write_text(SOLVER)
    make_boxes(path / "boxes_lmdb")
    (path / "detection.prototxt").write_text(DETECTION)
    detection = SOLVER.replace("normalized.prototxt", "detection.prototxt").replace("base_lr: 0.05", "base_lr: 0.01")
    (path / "detector.prototxt").write_text(f'{detection} eval_type: "detection"')
    return path


def train(folder: Path, solver: str, ranks: int, *more: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Losses, weights, and the numbers in the log after 25 iterations on this many ranks."""
    log = run_ranks(ranks, "train_ranks.py", solver, 25, "out.npz", *more, folder=folder)[1]
    with np.load(folder / "out.npz") as out:
        return (
            out["losses"],
            out["data"],
            re.findall(r"(\w+ net output #\d+: \w+ = \S+|Iteration \d+, lr .*)", log),
        )


@pytest.mark.parametrize(
    ("solver", "workers"), [("mixed.prototxt", (2, 3)), ("normal.prototxt", (4,)), ("detector.prototxt", (3,))]
)
def test_any_number_of_workers(folder: Path, solver: str, workers: tuple[int, ...]) -> None:
    losses, weights, log = train(folder, solver, 1)
    for ranks in workers:
        others, their_weights, their_log = train(folder, solver, ranks)
        np.testing.assert_allclose(others, losses, rtol=2e-4)
        assert np.abs(their_weights - weights).max() <= 1e-4 * np.abs(weights).max()
        assert len(their_log) == len(log)
        for ours, theirs in zip(their_log, log, strict=True):
            assert ours.split(" = ")[0] == theirs.split(" = ")[0]
            assert float(ours.split(" = ")[1]) == pytest.approx(float(theirs.split(" = ")[1]), rel=2e-3, abs=1e-3)


def test_without_overlap_the_same_bits(folder: Path) -> None:
    assert np.array_equal(train(folder, "normal.prototxt", 2)[1], train(folder, "normal.prototxt", 2, "no-overlap")[1])


def test_weights_without_a_seed_are_those_of_worker_0(folder: Path) -> None:
    """train_ranks.py checks that all ranks end with the same."""
    (folder / "unseeded.prototxt").write_text(SOLVER.replace("random_seed: 3", ""))
    run_ranks(2, "train_ranks.py", "unseeded.prototxt", 1, "out.npz", folder=folder)


def command_line(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fcaffe", "train", "--solver", "short.prototxt", *flags]
    (folder / "short.prototxt").write_text(SOLVER.replace("max_iter: 100", "max_iter: 10"))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_from_the_command_line(folder: Path) -> None:
    results = [command_line(folder), command_line(folder, "--workers", "3", "--reduce=tree", "-no-overlap")]
    last = [re.findall(r"Iteration \d+, loss = (\S+)", result.stderr)[-1] for result in results]
    assert float(last[1]) == pytest.approx(float(last[0]), rel=1e-4), [result.stderr[-2000:] for result in results]
    assert "Effective batch: 44 samples an iteration, over 3 workers" in results[1].stderr


def test_compression_has_messages_of_its_own(folder: Path) -> None:
    result = command_line(folder, "--workers", "2", "--compress", "fp16", "--reduce", "ring")
    assert result.returncode != 0 and "leave out --reduce ring" in result.stderr
    assert "Traceback" not in result.stderr
