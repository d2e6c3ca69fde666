"""`fcaffe summary` and `fcaffe solver`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("folder")


def test_summary_as_a_table(run: Run) -> None:
    code, out, err = run("summary net.prototxt")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "small (TRAIN)"
    assert lines[3].split() == ["ip", "InnerProduct", "4", "x", "3", "51", "192", "48"]
    assert lines[-3:] == [
        "Parameters      51",
        "Multiply-adds   192 (one batch forward)",
        "Memory          324 bytes (Caffe's 'Memory required for data')",
    ]


def test_summary_of_the_other_phase(run: Run) -> None:
    out = run("summary net.prototxt -phase TEST").out
    assert out.startswith("small (TEST)") and "accuracy" in out and "2 of 4 x 3" in out
    assert run("summary net.prototxt --phase test").fatal.startswith('phase must be "TRAIN" or "TEST"')


def test_summary_as_json(run: Run) -> None:
    made = json.loads(run("--json summary net.prototxt --phase=TEST").out)
    assert made["phase"] == "TEST" and made["total_params"] == 51 and made["params"] == {"ip": [[3, 16], [3]]}


def test_summary_names_the_forks_of_layers(run: Run, tmp_path: Path) -> None:
    (tmp_path / "forks.prototxt").write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: [1, 4, 6, 6] } } }'
        'layer { name: "n" type: "Normalize" bottom: "x" top: "n" } '
        'layer { name: "p" type: "Permute" bottom: "n" top: "p" permute_param { order: [0, 2, 3, 1] } }'
        'layer { name: "r" type: "ReLU6" bottom: "p" top: "p" }'
    )
    out = run(f"summary {tmp_path / 'forks.prototxt'}").out
    assert "Of forks        Normalize, Permute: as in the SSD fork (weiliu89/caffe)\n" in out
    assert "                ReLU6: as in the MobileNet-YOLO fork" in out
    layers = json.loads(run(f"summary {tmp_path / 'forks.prototxt'} --json").out)["layers"]
    assert [layer.get("fork", "").split(" (")[0] for layer in layers] == [
        "",
        "the SSD fork",
        "the SSD fork",
        "the MobileNet-YOLO fork",
    ]


def test_summary_of_a_net_whose_annotated_images_are_missing(run: Run, tmp_path: Path) -> None:
    """MobileNet-YOLO's losses need its own form of labels."""
    net = tmp_path / "yolo.prototxt"
    net.write_text(
        'layer { name: "data" type: "AnnotatedData" top: "data" top: "label"'
        '  data_param { source: "none" batch_size: 4 }'
        "  transform_param { resize_param { height: 26 width: 26 } } annotated_data_param { yolo_data_type: 1 } }"
        'layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { kernel_size: 2 stride: 2 } }'
        'layer { name: "out" type: "Convolution" bottom: "map" top: "out"'
        "  convolution_param { num_output: 21 kernel_size: 1 } }"
        'layer { name: "loss" type: "Yolov3" bottom: "out" bottom: "label" top: "loss"'
        "  yolov3_param { side: 13 num_class: 2 num: 3 mask: [0, 1, 2] biases: [10, 13, 16, 30, 33, 23] } }"
    )
    assert "Yolov3: as in" in run(f"summary {net}").out
    net.write_text(net.read_text().replace("yolo_data_type: 1", ""))
    assert 'label" (1, 1, 4, 8)' in run(f"summary {net}").fatal


def test_summary_says_what_it_assumes(run: Run) -> None:
    net = Path("net.prototxt")
    net.write_text(net.read_text().replace('"lmdb"', '"none"'))
    assert "none does not exist and there is no crop_size" in run("summary net.prototxt").fatal
    result = run("summary net.prototxt -input-shape 1,4,4 --json")
    assert json.loads(result.out)["total_params"] == 51
    expected = 'layer "data": none does not exist; records of 1 x 4 x 4 are assumed (--input-shape)'
    assert result.messages == [expected]
    assert run("summary net.prototxt -input-shape 4,4").fatal.startswith("--input-shape takes three positive numbers")


def test_solver_in_human_form(run: Run) -> None:
    code, out, err = run("solver solver.prototxt")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["lr_policy"] == ["step"] and lines["iter_size"] == ["1", "(default)"] and lines["momentum"] == ["0.9"]
    assert lines["Learning"] == ["rate", "(step),", "up", "to", "iteration", "8:"]
    assert lines["0"][0] == "0.01" and lines["6"][0] == "0.001"
    assert len(lines["0"][1]) == 10 * len(lines["6"][1])
    assert run("summary solver.prototxt") == (code, out, err)


def test_solver_as_json(run: Run) -> None:
    fields = json.loads(run("solver solver.prototxt --json").out)
    assert fields["base_lr"] == 0.01 and fields["test_iter"] == [2] and fields["snapshot_prefix"] == "small"


def test_only_one_file(run: Run) -> None:
    code, _, err = run("summary net.prototxt other.prototxt")
    assert code == 1 and err.startswith("ERROR: ") and "other.prototxt" in err
