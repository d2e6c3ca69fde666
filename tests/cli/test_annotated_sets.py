"""`fcaffe convert_annoset`, and the layer AnnotatedData that reads its databases."""

import json
from pathlib import Path

import numpy as np
import pytest

from fcaffe.data.images import encode_image
from tests.conftest import make_net
from tests.engine_choice import host

LABEL_MAP = """
item { name: "none_of_the_above" label: 0 display_name: "background" }
item { name: "1" label: 1 display_name: "cat" }
item { name: "2" label: 2 display_name: "dog" }
"""
# Per picture of 20 x 10 pixels: label, corners in pixels, difficult.
OBJECTS = {
    "a": [(2, (5, 1, 10, 9), 0), (1, (0, 0, 20, 10), 0), (2, (2, 2, 4, 4), 0)],
    "b": [],
    "c": [(1, (15, 5, 25, 10), 0)],  # beyond the right border
}

NET = """
layer { name: "data" type: "AnnotatedData" top: "data" top: "label" include { phase: TRAIN }
  data_param { source: "db" batch_size: %d backend: LMDB } %s }
"""


def xml(objects):
    rows = "".join(
        f"<object><name>{label}</name><difficult>{difficult}</difficult><bndbox><xmin>{box[0]}</xmin>"
        f"<ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
        for label, box, difficult in objects
    )
    return f"<annotation><size><width>20</width><height>10</height></size>{rows}</annotation>"


def coco(objects):
    rows = [
        {"category_id": label, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": difficult}
        for label, (x0, y0, x1, y1), difficult in objects
    ]
    return json.dumps({"image": {"height": 10, "width": 20}, "annotation": rows})


def txt(objects):
    return "".join(f"{label} {' '.join(map(str, box))}\n" for label, box, _ in objects)


FORMS = {"xml": xml, "json": coco, "txt": txt}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("map.prototxt").write_text(LABEL_MAP)
    for name, objects in OBJECTS.items():
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (3, 10, 20), np.uint8)
        Path(f"{name}.png").write_bytes(encode_image(pixels, "png"))
        for ending, form in FORMS.items():
            Path(f"{name}.{ending}").write_text(form(objects))
    for ending in FORMS:
        Path(f"{ending}.lst").write_text("".join(f"{name}.png {name}.{ending}\n" for name in OBJECTS))


def labels(batch_size, transform=""):
    net = make_net(NET % (batch_size, transform))
    net.forward()
    found = host(net.blob("label").data)
    net.close()
    return found


@pytest.mark.parametrize("label_type", FORMS)
@pytest.mark.parametrize("stored", [(), ("--encoded",), ("--resize_width=40", "--resize_height=40")])
def test_boxes_reach_the_net(run, label_type, stored):
    result = run(
        "convert_annoset", "--anno_type=detection", f"--label_type={label_type}", "--label_map_file=map.prototxt",
        *stored, "./", f"{label_type}.lst", "db",
    )  # fmt: skip
    assert result.code == 0
    assert "exceeds its picture" in result.err
    expected = [  # groups in the order of their first object; boxes end at the border
        (0, 2, 0, 0.25, 0.1, 0.5, 0.9, 0),
        (0, 2, 1, 0.1, 0.2, 0.2, 0.4, 0),
        (0, 1, 0, 0, 0, 1, 1, 0),
        (2, 1, 0, 0.75, 0.5, 1, 1, 0),
    ]
    np.testing.assert_allclose(labels(3)[0, 0], expected, atol=1e-6)


def test_batches_without_objects_and_mirrored_ones(run):
    run("convert_annoset", "--anno_type=detection", "--label_map_file=map.prototxt", "./", "xml.lst", "db")
    net = make_net(NET % (1, "transform_param { mirror: true }"), seed=3)
    assert net.blob("label").shape == (1, 1, 1, 8)  # before the first batch, for the layers behind
    shapes = []
    for _ in range(9):
        net.forward()
        shapes.append(net.blob("label").shape)
        if shapes[-1][2] == 1 and len(shapes) % 3 == 2:
            np.testing.assert_array_equal(host(net.blob("label").data), np.full((1, 1, 1, 8), -1))
    assert shapes == [(1, 1, 3, 8), (1, 1, 1, 8), (1, 1, 1, 8)] * 3
    net.close()


def test_classification(run):
    Path("list").write_text("a.png 4\nb.png 7\n")
    assert run("convert_annoset", "./", "list", "db").code == 0
    np.testing.assert_array_equal(labels(2), [4, 7])


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.xml", "<annotation><object><name>cow</name></object></annotation>", "a.xml"),
        ("a.xml", xml([("cow", (1, 1, 2, 2), 0)]), 'no "cow"'),
        ("a.xml", "<annotation", "PASCAL VOC"),
        ("a.xml", xml([]).replace("20", "0"), "true size"),
        ("map.prototxt", "item { nam: 3 }", "map.prototxt"),
        ("xml.lst", "a.png\n", "xml.lst:1"),
        ("xml.lst", "", "empty"),
        ("xml.lst", "a.png none.xml", "none.xml"),
    ],
)
def test_wrong_files(run, name, text, problem):
    Path(name).write_text(text)
    result = run("convert_annoset", "--anno_type=detection", "--label_map_file=map.prototxt", "./", "xml.lst", "db")
    assert result.code == 134
    assert problem in result.err
    assert not Path("db").exists()


def test_detection_needs_a_label_map(run):
    result = run("convert_annoset", "--anno_type=detection", "./", "xml.lst", "db")
    assert (result.code, "--label_map_file" in result.err) == (134, True)
