import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import fcaffe.layers.data  # noqa: F401 - registers the type
from fcaffe.data import batches
from fcaffe.engines import NumpyEngine, cpu_engine
from fcaffe.engines.base import Pending
from fcaffe.errors import DataError, NetError
from fcaffe.net.blob import Blob
from fcaffe.net.context import Context
from fcaffe.net.registry import create_layer
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom

GOLDEN = Path(__file__).parents[1] / "golden"
SEEDS = [1, 42, 1701]


def make(text, phase, random, tops=2, engine=None, **context):
    """The first layer of a net, set up, with its tops."""
    param = parse_text(text, pb.NetParameter).layer[0]
    param.phase = phase
    layer = create_layer(param, Context(engine or cpu_engine(), random, **context))
    top = [Blob(layer.xp, channels_last=True) for _ in range(tops)]
    layer.initialize([], top)
    return layer, top


def data_layer(
    source, batch_size=2, transform="", phase=pb.TEST, seed=1, tops=2, data_param="backend: LMDB", engine=None
):
    text = f"""layer {{ name: "images" type: "Data" top: "data" top: "label" transform_param {{ {transform} }}
               data_param {{ source: "{source}" batch_size: {batch_size} {data_param} }} }}"""
    return make(text, phase, CaffeRandom(seed), tops, engine)


def cropped(decision, size):
    """What the layer makes of a record of crop_lmdb, whose pixel (r, c) is 12 r + c."""
    mirror, row, column = decision
    image = np.arange(144, dtype=np.float32).reshape(12, 12)[row : row + size, column : column + size]
    return image[:, ::-1] if mirror else image


# --- what Caffe read --------------------------------------------------------------------------------------------------


CASES = sorted(path.stem.removeprefix("read_") for path in (GOLDEN / "interop").glob("read_*.npz"))


@pytest.mark.parametrize("case", CASES)
def test_reads_what_caffe_read(case, monkeypatch):
    monkeypatch.chdir(GOLDEN / "interop")
    with np.load(f"read_{case}.npz") as file:
        golden = dict(file)
    text = str(golden["prototxt"])
    if "LEVELDB" in text:
        pytest.importorskip("plyvel", reason="the leveldb extra (plyvel) is not installed")
    if "colour" in text:
        pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")
    layer, top = make(text, pb.TEST, CaffeRandom(1))
    images = golden.get("data", [])
    for index, labels in enumerate(golden["label"]):
        layer.forward([], top)
        assert np.array_equal(top[1].data, labels)
        if index < len(images):
            assert np.array_equal(top[0].data, images[index])
    layer.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", ["both", "crop", "mirror", "test"])
def test_crops_and_mirrors_as_caffe_does_for_the_seed(case, seed, monkeypatch):
    monkeypatch.chdir(GOLDEN / "fillers")
    golden = np.load(f"crops_seed{seed}.npz")
    random = CaffeRandom(seed)
    layer, top = make(str(golden[f"{case}/prototxt"]), pb.Phase.Value(str(golden[f"{case}/phase"])), random)
    weights = golden[f"{case}/conv_weights"]  # filled right after the data layer has taken its draws
    assert np.array_equal(random.normal(0, 1, weights.size).reshape(weights.shape), weights)
    for decisions, labels in zip(golden[f"{case}/decisions"], golden[f"{case}/labels"], strict=True):
        layer.forward([], top)
        assert np.array_equal(top[1].data, labels)
        for image, decision in zip(top[0].data[:, 0], decisions, strict=True):
            assert np.array_equal(image, cropped(decision, image.shape[0]))
    layer.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_two_data_layers_of_a_solver_take_their_draws_in_order(seed, monkeypatch):
    monkeypatch.chdir(GOLDEN / "fillers")
    golden = np.load(f"solver_seed{seed}.npz")
    net = parse_text(str(golden["net"]), pb.NetParameter)
    random = CaffeRandom(seed)
    train, top = make(f"layer {{ {net.layer[0]} }}", pb.TRAIN, random)
    check_fills(golden, "train_init", random)
    test, _ = make(f"layer {{ {net.layer[1]} }}", pb.TEST, random)
    check_fills(golden, "test_init", random)
    for iteration in range(4):
        train.forward([], top)
        assert np.array_equal(top[1].data, golden[f"iter{iteration}/labels"])
        for image, decision in zip(top[0].data[:, 0], golden[f"iter{iteration}/decisions"], strict=True):
            assert np.array_equal(image, cropped(decision, 8))
    train.close()
    test.close()


def check_fills(golden, name, random):
    """The draws of the net's fillers: conv weights and bias, inner product weights."""
    weights, bias, product = (golden[f"{name}/{blob}"] for blob in ("conv/0", "conv/1", "ip/0"))
    assert np.array_equal(random.normal(0, 0.1, weights.size).reshape(weights.shape), weights)
    assert np.array_equal(random.uniform(-1, 1, bias.size), bias)
    random.draws(product.size)


# --- tops, log --------------------------------------------------------------------------------------------------------


def test_shapes_come_with_setup_and_are_told(capfd):
    layer, top = data_layer(GOLDEN / "interop" / "gray_lmdb", 5, "crop_size: 20")
    assert top[0].shape == (5, 1, 20, 20) and top[1].shape == (5,)
    log = capfd.readouterr().err
    assert "data_layer.cpp:45] output data size: 5,1,20,20" in log
    assert f"db_lmdb.cpp:35] Opened lmdb {GOLDEN}/interop/gray_lmdb" in log
    layer.close()


class Late(NumpyEngine):
    """Copies nothing before somebody waits for it."""

    class Copy(Pending):
        done = False

        def __init__(self, source, seen):
            super().__init__()
            self.source, self.seen = source, seen

        def wait(self):
            if not self.done:
                self.seen.append(self.source.copy())
            self.done = True

    def __init__(self):
        super().__init__()
        self.seen = []

    def upload(self, host, target):
        assert host.shape == target.shape
        return self.Copy(host, self.seen)


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_batches_stay_until_the_engine_has_copied_them(prefetch):
    engine = Late()
    options = {"transform": "crop_size: 5 mirror: true", "phase": pb.TRAIN}
    depth = f"backend: LMDB prefetch: {prefetch}"
    late, tops = data_layer(GOLDEN / "interop" / "gray_lmdb", data_param=depth, engine=engine, **options)
    plain, top = data_layer(GOLDEN / "interop" / "gray_lmdb", **options)
    expected = []
    for _ in range(8):
        late.forward([], tops)
        plain.forward([], top)
        expected += [blob.data.copy() for blob in top]
    late.close()
    plain.close()
    assert len(engine.seen) == len(expected)
    assert all(np.array_equal(seen, values) for seen, values in zip(engine.seen, expected, strict=True))


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["gray_lmdb", "colour_png_lmdb"])
def test_the_number_of_decoding_threads_changes_nothing(source, monkeypatch):
    if source == "colour_png_lmdb":
        pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")
    results = []
    for cpus in (1, 2, 7):
        monkeypatch.setattr(batches, "available_cpus", lambda cpus=cpus: cpus)
        layer, top = data_layer(GOLDEN / "interop" / source, 50, "crop_size: 19 mirror: true", pb.TRAIN)
        for _ in range(3):
            layer.forward([], top)
            results.append((top[0].data.copy(), top[1].data.copy()))
        layer.close()
    for index, (data, labels) in enumerate(results):
        assert np.array_equal(data, results[index % 3][0]) and np.array_equal(labels, results[index % 3][1])
    assert not np.array_equal(results[0][0], results[1][0])


def test_a_process_that_is_still_decoding_ends_at_once():
    code = (
        "from fcaffe.data import batches, prefetch; batches.available_cpus = lambda: 4\n"
        "prefetch.END_TIMEOUT = 1000\n"  # nobody may need it
        "from tests.layers.test_data_layer import GOLDEN, data_layer\n"
        "layer, top = data_layer(GOLDEN / 'interop' / 'gray_lmdb', 64, data_param='backend: LMDB prefetch: 1000')\n"
        "layer.forward([], top)\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_close_ends_the_thread():
    layer, top = data_layer(GOLDEN / "interop" / "gray_lmdb")
    layer.forward([], top)
    layer.close()
    layer.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("prefetch", "decode"))]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"batch_size": 0}, NetError, "data_param.batch_size must be positive"),
        (
            {"data_param": f"backend: LMDB prefetch: {2**31 - 1}"},
            DataError,
            "2147483647 batch.* take .* lower batch_size",
        ),
        ({"batch_size": 2**32 - 1}, DataError, "4294967295 x 1 x 28 x 28 .*lower batch_size"),
        ({"transform": "crop_size: 29"}, DataError, "crop_size 29 is larger than the images, which are 28 x 28"),
        ({"source": "no/such_lmdb"}, DataError, '"no/such_lmdb" does not exist'),
        ({"data_param": ""}, DataError, "write backend: LMDB"),
    ],
)
def test_errors_at_setup_name_the_layer(arguments, kind, words):
    with pytest.raises(kind, match=words) as caught:
        data_layer(**{"source": GOLDEN / "interop" / "gray_lmdb", **arguments})
    assert str(caught.value).startswith('layer "images" (Data): ')
    assert "\n" not in str(caught.value)


def test_a_worker_that_reads_other_records_than_worker_0_refuses():
    text = f"""layer {{ name: "images" type: "Data" top: "data"
               data_param {{ source: "{GOLDEN}/interop/gray_lmdb" backend: LMDB batch_size: 2 }} }}"""
    with pytest.raises(DataError, match=r'layer "images".* has 64 records here, but 7 where worker 0'):
        make(text, pb.TEST, CaffeRandom(1), 1, as_worker_0=lambda version: 7)
