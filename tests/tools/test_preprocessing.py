"""One statement of the preprocessing: whoever runs a net by it gets what `fcaffe test` gets."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fcaffe
from fcaffe import log
from fcaffe.cli import main
from fcaffe.data import array_to_datum, write_lmdb
from fcaffe.data.form import MODES, Form
from fcaffe.data.images import damage_of, encode_image, header_of
from fcaffe.data.mean import mean_to_blob
from fcaffe.engines import cpu_engine
from fcaffe.errors import ArgumentError, DataError, UsageError
from fcaffe.model_files import write_model
from fcaffe.net.weights import to_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_net, write_binary, write_text
from fcaffe.tools.deploy import deploy_net, input_shapes
from fcaffe.tools.nets import new_net
from fcaffe.tools.preprocessing import Preprocessing
from tests.pictures import with_orientation

NET = """
layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ {transform} }}
  data_param {{ source: "data/test_lmdb" backend: LMDB batch_size: {pictures} }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: 4 weight_filler {{ type: "gaussian" std: 0.002 }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
"""
PICTURES = 6

pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(draw: np.random.Generator, transform: str, form: Form, pixels: np.ndarray) -> list[str]:
    """Write pictures, their data set as `fcaffe dataset` would, and a net with weights. Returns the pictures' paths."""
    Path("data").mkdir()
    paths = [f"data/{index}.png" for index in range(len(pixels))]
    for path, one in zip(paths, pixels, strict=True):
        Path(path).write_bytes(encode_image(one, "png"))
    records = [form.load(Path(path).read_bytes(), path) for path in paths]
    write_lmdb(
        "data/test_lmdb",
        ((b"%02d" % i, array_to_datum(one, i % 4).SerializeToString()) for i, one in enumerate(records)),
    )
    for folder in ("data", "."):
        Path(folder, "info.json").write_text(form.info())
    write_binary("data/mean.binaryproto", mean_to_blob(draw.uniform(0, 255, records[0].shape).astype(np.float32)))
    Path("net.prototxt").write_text(NET.format(transform=transform, pictures=len(pixels)))
    return paths


def of_a_test() -> np.ndarray:
    """The probabilities in a test of the net, whose weights are stored."""
    param = read_net("net.prototxt")
    param.state.phase = pb.TEST
    with contextlib.closing(new_net(param, cpu_engine(), inference=False)) as net:
        write_model("net.caffemodel", to_model(net))
        net.forward()
        return net.context.engine.to_numpy(net.blob("prob").data).copy()


def by_pycaffe(paths: list[str], transform: Any, form: Form) -> np.ndarray:
    """The same by the deploy net and the Transformer of Caffe's Python interface, as its users write it."""
    net = fcaffe.Net("deploy.prototxt", fcaffe.TEST, weights="net.caffemodel")
    transformer = fcaffe.io.Transformer({"data": net.blobs["data"].data.shape})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_raw_scale("data", 255)
    if form.channels == 3:
        transformer.set_channel_swap("data", (2, 1, 0))
    _, _, height, width = net.blobs["data"].data.shape
    assert form.size is not None
    top, left = (form.size[0] - height) // 2, (form.size[1] - width) // 2
    if transform.mean_file:
        blob = pb.BlobProto.FromString(Path(transform.mean_file).read_bytes())
        transformer.set_mean("data", fcaffe.io.blobproto_to_array(blob)[0][:, top : top + height, left : left + width])
    elif transform.mean_value:
        values = list(transform.mean_value) * (form.channels if len(transform.mean_value) == 1 else 1)
        transformer.set_mean("data", np.array(values))
    transformer.set_input_scale("data", transform.scale)
    rows = []
    for path in paths:
        image = fcaffe.io.load_image(path, color=form.channels == 3)[top : top + height, left : left + width]
        net.blobs["data"].data[...] = transformer.preprocess("data", image)
        rows.append(net.forward()["prob"][0].copy())
    return np.array(rows)


def by_onnx(pixels: np.ndarray, form: Form) -> np.ndarray:
    """The same by ONNX Runtime, from the train_val net, whose preprocessing the graph has."""
    import onnxruntime

    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["convert", "net.caffemodel", "net.onnx", "--model", "net.prototxt"]) == 0
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    height, width = taken.shape[2:]
    assert form.size is not None
    top, left = (form.size[0] - height) // 2, (form.size[1] - width) // 2
    images = pixels[:, :, top : top + height, left : left + width].astype(np.float32)
    return np.concatenate([session.run(None, {taken.name: image[None]})[0] for image in images])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    channels=st.sampled_from([1, 3]),
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    crop=st.booleans(),
    scale=st.sampled_from([1, 0.00390625, 0.017]),
    mean=st.sampled_from(["none", "file", "value", "values"]),
    seed=st.integers(0, 1000),
)
def test_all_agree(
    channels: int, size: tuple[int, int], crop: bool, scale: float, mean: str, seed: int, folder: Path
) -> None:
    draw = np.random.default_rng(seed)
    form = Form(channels, size)
    values = draw.uniform(0, 255, channels if mean == "values" else 1)
    means = {"none": "", "file": 'mean_file: "data/mean.binaryproto"'}
    text = means.get(mean, " ".join(f"mean_value: {value:.3f}" for value in values))
    text += f" scale: {scale}" + (f" crop_size: {min(size) - int(draw.integers(0, 4))}" if crop else "")
    with log.quiet():
        shutil.rmtree("data", ignore_errors=True)
        pixels = draw.integers(0, 256, (PICTURES, channels, *size), np.uint8)
        paths = written(draw, text, form, pixels)
        expected = of_a_test()
        param = read_net("net.prototxt")
        write_text("deploy.prototxt", deploy_net(param, input_shapes(param, "net.prototxt")))
        for model in ("net.prototxt", "deploy.prototxt"):
            with fcaffe.Predictor(model=model, weights="net.caffemodel") as predictor:
                np.testing.assert_allclose(predictor.probabilities(paths), expected, atol=1e-5)
                arrays = [one.transpose(1, 2, 0) for one in pixels]
                np.testing.assert_allclose(predictor.probabilities(arrays, "BGR"), expected, atol=1e-5)
                turned = [one[:, :, ::-1] for one in arrays]
                np.testing.assert_allclose(predictor.probabilities(turned, "RGB"), expected, atol=1e-5)
        transform = parse_text(text, pb.TransformationParameter)
        np.testing.assert_allclose(by_pycaffe(paths, transform, form), expected, atol=1e-5)
        if importlib.util.find_spec("onnxruntime"):
            np.testing.assert_allclose(by_onnx(pixels, form), expected, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(8, 8), (6, 14), (20, 7)])
def test_other_pictures_get_the_size_as_the_mode_says(mode: str, size: tuple[int, int]) -> None:
    pixels = np.full((3, 10, 16), 200, np.uint8)
    fitted = Form(3, size, mode).fit(pixels)
    assert fitted.shape == (3, *size)
    border = (fitted == 0).any(axis=0)
    assert border.any() == (mode in ("fill", "half_crop")) and set(np.unique(fitted)) <= {0, 200}
    if mode == "fill":
        rows, columns = (np.flatnonzero(~border.all(axis=axis)) for axis in (1, 0))
        scale = min(size[0] / 10, size[1] / 16)
        assert (len(rows), len(columns)) == (round(10 * scale), round(16 * scale)), "the aspect ratio stays"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_applied_to_files_and_to_images_of_pil(orientation: int) -> None:
    pixels = np.zeros((3, 16, 24), np.uint8)
    pixels[:, :8, :8] = 255
    content = with_orientation(encode_image(pixels, "jpg"), orientation)
    assert header_of(content)[:4] == (16, 24, 3, orientation)
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed").open(io.BytesIO(content))
    loaded, opened = Form().load(content, "it"), Preprocessing(Form()).pixels(image)
    assert loaded.shape == opened.shape == (3, *((16, 24) if orientation < 5 else (24, 16)))
    np.testing.assert_allclose(loaded.astype(int), opened.astype(int), atol=8)
    assert loaded[:, :4, :4].min() > 200 or orientation > 1


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_a_file_that_is_cut_anywhere_is_truncated(kind: str) -> None:
    content = encode_image(np.random.default_rng(1).integers(0, 256, (3, 30, 30), np.uint8), kind)
    assert damage_of(content) == "" and damage_of(b"") == "empty"
    for length in range(8, len(content) - 1, 23):
        with pytest.raises(DataError, match="it is truncated"):
            Form().load(content[:length], "it")


def test_an_array_says_its_order(folder: Path) -> None:
    draw = np.random.default_rng(0)
    written(draw, "", Form(3, (8, 8)), draw.integers(0, 256, (PICTURES, 3, 8, 8), np.uint8))
    of_a_test()
    with fcaffe.Predictor(model="net.prototxt", weights="net.caffemodel") as predictor:
        with pytest.raises(ArgumentError, match='order="RGB"'):
            predictor([np.zeros((8, 8, 3), np.uint8)])
        with pytest.raises(ArgumentError, match="float64 of the shape"):
            predictor([np.zeros((8, 8, 3))], "RGB")
        with pytest.raises(DataError, match="none"):
            predictor(["none.jpg"])
        assert predictor([np.zeros((5, 9), np.uint8)])[0][0] in predictor.labels


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ('type: "HDF5Data" top: "data" hdf5_data_param { source: "x" batch_size: 1 }', "HDF5Data"),
        ('type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } }', "--mean"),
        ('type: "Data" top: "data" data_param { source: "gone/lmdb" batch_size: 1 }', "gone/lmdb is not there"),
    ],
)
def test_a_net_that_does_not_say_is_refused_with_the_remedy(layer: str, words: str) -> None:
    ip = 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }'
    Path("net.prototxt").write_text(f'layer {{ name: "data" {layer} }} {ip}')
    with pytest.raises(UsageError, match=words):
        fcaffe.Predictor(model="net.prototxt", weights="net.caffemodel")
