"""Noise and states belong to a pass and its rows: they are the same however workers and shards divide a batch, and no
two rows of any two passes share their numbers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import log
from fcaffe.engines import NumpyEngine
from fcaffe.errors import LayerError
from fcaffe.net import Context, Net
from fcaffe.net.layer import Held
from fcaffe.net.noise import Noise
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from fcaffe.tools.nets import score
from tests.parallel.rank_threads import ThreadExchange, ThreadWorkers, on_ranks

SOLVER = """base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 random_seed: 5 snapshot_after_train: false max_iter: 5
    test_interval: 2 test_iter: 3 display: 1 """
DATA = """layer { name: "rows" type: "HDF5Data" top: "x" top: "label" top: "pick" top: "boxes"
    hdf5_data_param { source: "rows.txt" batch_size: 7 } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "c"
    convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "positive" type: "AbsVal" bottom: "c" top: "p" }
"""
DROP = 'type: "Dropout" dropout_param { dropout_ratio: 0.4 sample_weights_test: true }'
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "c" top: "n" batch_norm_param { eps: 0.1 } } '
MARGIN = """type: "MarginInnerProduct" bottom: "label" top: "m" top: "lambda"
    margin_inner_product_param { num_output: 3 base: 100 gamma: 0.5 lambda_min: 1 type: QUADRUPLE
      weight_filler { type: "xavier" } }"""
LAYERS = {  # from c, or p, to m
    "Dropout": f'layer {{ name: "it" {DROP} bottom: "c" top: "m" }}',
    "in place": f'layer {{ name: "it" {DROP} bottom: "p" top: "p" }} layer {{ type: "Split" bottom: "p" top: "m" }}',
    "behind Reshape": f"""layer {{ name: "s" type: "Reshape" bottom: "c" top: "s"
        reshape_param {{ shape {{ dim: -1 dim: 8 }} }} }} layer {{ name: "it" {DROP} bottom: "s" top: "m" }}""",
    "over time steps": f"""layer {{ name: "s" type: "Permute" bottom: "c" top: "s"
        permute_param {{ order: 1 order: 0 }} }} layer {{ name: "it" {DROP} bottom: "s" top: "m" }}""",
    "of one axis": f"""layer {{ name: "s" type: "Reduction" bottom: "c" top: "s" reduction_param {{ axis: 1 }} }}
        layer {{ name: "it" {DROP} bottom: "s" top: "m" }}""",
    "of five axes": f"""layer {{ name: "s" type: "Reshape" bottom: "c" top: "s"
        reshape_param {{ shape {{ dim: 0 dim: 2 dim: 2 dim: 4 dim: 4 }} }} }}
        layer {{ name: "it" {DROP} bottom: "s" top: "m" }}""",
    "behind Filter": f"""layer {{ name: "s" type: "Filter" bottom: "c" bottom: "pick" top: "s" }}
        layer {{ name: "it" {DROP} bottom: "s" top: "m" }}""",
    "behind split weights": f"""layer {{ name: "s" type: "InnerProduct" bottom: "c" top: "s"
        inner_product_param {{ num_output: 9 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "it" {DROP} bottom: "s" top: "m" }}""",
    "stochastic pooling": """layer { name: "it" type: "Pooling" bottom: "p" top: "m"
        pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }""",
    "SPP": """layer { name: "it" type: "SPP" bottom: "p" top: "m"
        spp_param { pool: STOCHASTIC pyramid_height: 2 } }""",
    "BatchNorm": NORM + 'layer { type: "Split" bottom: "n" top: "m" }',
    "of each batch": NORM.replace("eps", "use_global_stats: false eps")
    + 'layer { type: "Split" bottom: "n" top: "m" }',
    "DummyData": """layer { name: "drawn" type: "DummyData" top: "drawn" dummy_data_param {
        shape { dim: 7 dim: 4 dim: 4 dim: 4 } data_filler { type: "gaussian" } } }
        layer { name: "sum" type: "Eltwise" bottom: "c" bottom: "drawn" top: "m" }""",
    "margin": f'layer {{ name: "it" bottom: "c" {MARGIN} }}',
    "margin behind BatchNorm": NORM + f'layer {{ name: "it" bottom: "n" {MARGIN} }}',
    "normalized weights": """layer { name: "it" type: "InnerProduct" bottom: "c" top: "m" inner_product_param {
        num_output: 3 bias_term: false normalize: true weight_filler { type: "xavier" } } }""",
    "RegionLoss": """layer { name: "s" type: "Convolution" bottom: "c" top: "s" convolution_param {
          num_output: 16 kernel_size: 2 stride: 2 weight_filler { type: "xavier" } } }
        layer { name: "it" type: "RegionLoss" bottom: "s" bottom: "boxes" top: "region" loss_weight: 0.1
          region_loss_param { side: 2 num_class: 3 num: 2 biases: [1, 1, 2, 2] } }
        layer { type: "Split" bottom: "s" top: "m" }""",
    "LSTM": """layer { name: "s" type: "Permute" bottom: "c" top: "s" permute_param { order: 1 order: 0 } }
        layer { name: "go" type: "DummyData" top: "go" dummy_data_param { shape { dim: 4 dim: 7 }
          data_filler { value: 0.5 } } }
        layer { name: "it" type: "LSTM" bottom: "s" bottom: "go" top: "m"
          recurrent_param { num_output: 3 weight_filler { type: "xavier" } } }""",
}
END = """
layer { name: "loss" type: "Reduction" bottom: "m" top: "loss" loss_weight: 0.01
    reduction_param { operation: SUMSQ } }"""
logged = threading.local()  # `values`: the outputs that the thread has logged


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    h5py = pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    draw = np.random.default_rng(1)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = draw.normal(size=(28, 3, 4, 4)).astype("f4")
        file["label"] = draw.integers(0, 3, 28).astype("f4")
        file["pick"] = (np.arange(28) % 3 > 0).astype("f4")
        boxes = np.zeros((28, 3, 5), "f4")
        boxes[:, 0] = [1, 0.4, 0.6, 0.3, 0.5]
        file["boxes"] = boxes.reshape(28, 15)
    (tmp_path / "rows.txt").write_text("rows.h5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log, "net_outputs", lambda _kind, _, values: logged.values.extend(map(np.copy, values)))
    return tmp_path


def net_text(layer: str) -> str:
    return DATA + LAYERS[layer] + END


def train(layer: str, fields: str, **options: Any) -> list[np.ndarray]:
    """What training and tests have logged in five iterations, the weights, and the states that all workers have."""
    param = parse_text(SOLVER + fields, pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(net_text(layer), pb.NetParameter))
    logged.values = []
    solver = Solver(param, NumpyEngine(), "counter", **options)
    solver.solve()
    states = [
        array
        for one in solver.net.layers
        if one.held is Held.ALIKE and one.bottom_names
        for array in one.state().values()
    ]
    found = [
        *logged.values,
        *(one.blob.data.copy() for one in solver.net.parameters.owned if not one.is_split),
        *states,
    ]
    solver.close()
    return found


def on_workers(size: int) -> Callable[..., list[np.ndarray]]:
    def run(layer: str, fields: str, **more: Any) -> list[np.ndarray]:
        work = lambda workers: train(layer, fields, workers=workers, exchange=ThreadExchange(workers), **more)  # noqa: E731
        return on_ranks(size, work)[0]

    return run


@pytest.mark.parametrize("fields", ["", "iter_size: 2"])
@pytest.mark.parametrize("layer", list(LAYERS))
def test_the_same_however_the_batch_is_divided(folder: Path, layer: str, fields: str) -> None:
    with log.quiet(3):
        expected = train(layer, fields)
        results = {
            "2 workers": on_workers(2)(layer, fields),
            "3 workers": on_workers(3)(layer, fields),
            "3 workers with split weights": on_workers(3)(layer, fields, split_below=1e9),
            "--reproducible 2": train(layer, fields, shards=2),
            "--reproducible 3": train(layer, fields, shards=3),
        }
        reproduced = {size: on_workers(size)(layer, fields, shards=3) for size in (2, 3)}
    for size, found in reproduced.items():
        for ours, theirs in zip(found, results["--reproducible 3"], strict=True):
            np.testing.assert_array_equal(ours, theirs, f"bits of --reproducible 3 on {size} workers")
    for how, found in results.items():
        if "split" in how:  # the weights are in parts
            found, compared = found[:6], expected[:6]
        else:
            compared = expected
        assert [a.shape for a in found] == [a.shape for a in compared], how
        for ours, theirs in zip(found, compared, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * max(1, abs(theirs).max()), err_msg=how)


@pytest.mark.parametrize("shards", [0, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("per_worker", [False, True])
def test_a_file_has_the_batch_once(folder: Path, size: int, shards: int, per_worker: bool) -> None:
    """However it is divided, also beside a layer with a state, and of the batches of several workers."""
    if per_worker and shards:
        return
    written = """layer { name: "file" type: "HDF5Output" bottom: "x" bottom: "label"
        hdf5_output_param { file_name: "out.h5" } } """
    param = parse_text(SOLVER.split("max_iter")[0] + "max_iter: 1", pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(DATA + written + LAYERS["margin behind BatchNorm"] + END, pb.NetParameter))

    def work(workers: ThreadWorkers) -> None:
        workers.per_worker = per_worker
        logged.values = []
        exchange = ThreadExchange(workers)
        Solver(param, NumpyEngine(), "counter", workers=workers, exchange=exchange, shards=shards).step(1)

    if shards < size:
        shards = 0 if shards == 0 else size
    with log.quiet(3):
        on_ranks(size, work)
    h5py = pytest.importorskip("h5py")
    with h5py.File("out.h5") as out, h5py.File("rows.h5") as rows:
        count = 7 * size if per_worker else 7
        np.testing.assert_array_equal(out["data"][()], rows["x"][:count])
        np.testing.assert_array_equal(out["label"][()].ravel(), rows["label"][:count])


def test_the_file_of_a_test_is_that_of_one_worker(folder: Path) -> None:
    """Whose second batch is an error, as in Caffe."""
    written = """layer { name: "file" type: "HDF5Output" bottom: "x" bottom: "label"
        hdf5_output_param { file_name: "out.h5" } include { phase: TEST } } """
    for batches in 1, 2:
        fields = SOLVER.replace("test_iter: 3", f"test_iter: {batches}")
        param = parse_text(fields, pb.SolverParameter)
        param.net_param.CopyFrom(parse_text(DATA + written + LAYERS["BatchNorm"] + END, pb.NetParameter))

        def work(workers: ThreadWorkers, param: Any = param) -> None:
            logged.values = []
            Solver(param, NumpyEngine(), "counter", workers=workers, exchange=ThreadExchange(workers)).test_all()

        with log.quiet(3), pytest.raises(LayerError, match="holds the first pass") if batches > 1 else nullcontext():
            on_ranks(2, work)
        if batches == 1:
            h5py = pytest.importorskip("h5py")
            with h5py.File("out.h5") as out, h5py.File("rows.h5") as rows:
                np.testing.assert_array_equal(out["data"][()], rows["x"][: len(out["data"])])
                assert len(out["data"]) == 7


# --- no two rows have the same mask -----------------------------------------------------------------------------------


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """The rows of all masks that are drawn, and of the dice of pooling, as bits."""
    found: list[np.ndarray] = []
    draw, uniform = Noise.keep_mask, Noise.uniform

    def keep_mask(self: Noise, *arguments: Any) -> np.ndarray:
        found.extend(np.reshape(mask := draw(self, *arguments), (len(mask), -1)))
        return mask

    def dice(self: Noise, *arguments: Any) -> np.ndarray:
        found.extend(np.reshape(values := uniform(self, *arguments), (len(values), -1)) < 0.5)
        return values

    monkeypatch.setattr(Noise, "keep_mask", keep_mask)
    monkeypatch.setattr(Noise, "uniform", dice)
    yield found


WIDE = """layer { name: "ones" type: "DummyData" top: "ones" dummy_data_param { shape { dim: 3 dim: 4 dim: 8 dim: 8 }
    data_filler { value: 1 } } } layer { name: "scale" type: "Scale" bottom: "ones" top: "c" } """
NOISY = {
    "Dropout": 'layer { name: "it" type: "Dropout" bottom: "c" top: "m" dropout_param { sample_weights_test: true } }',
    "behind Reshape": """layer { name: "s" type: "Reshape" bottom: "c" top: "s" reshape_param { shape { dim: -1
        dim: 64 } } } layer { name: "it" type: "Dropout" bottom: "s" top: "m"
        dropout_param { sample_weights_test: true } }""",
    "stochastic": """layer { name: "it" type: "Pooling" bottom: "c" top: "m"
        pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 } }""",
}


def trained(text: str, noise: str) -> None:
    param = parse_text(SOLVER + "iter_size: 2", pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(text, pb.NetParameter))
    logged.values = []
    solver = Solver(param, NumpyEngine(), noise)
    solver.net.forward()  # a script's
    solver.solve()
    solver.net.forward()
    solver.step(1)


def run_of(text: str, noise: str, phase: int, run: Callable[[Net], Any]) -> None:
    param = parse_text(text, pb.NetParameter)
    param.state.phase = phase
    run(Net(param, Context(NumpyEngine(), CaffeRandom(1), noise, whole_passes=True, inference=True)))


WAYS: dict[str, Callable[[str, str], None]] = {
    "a training with tests": trained,
    "fcaffe test": lambda text, noise: run_of(text, noise, pb.TEST, lambda net: score(net, 5)),
    "a script": lambda text, noise: run_of(text, noise, pb.TRAIN, lambda net: [net.forward() for _ in range(5)]),
    "2 workers": lambda text, noise: on_ranks(2, lambda workers: two_workers(text, noise, workers)) and None,
}


def two_workers(text: str, noise: str, workers: ThreadWorkers) -> None:
    """Each has a batch of its own."""
    workers.per_worker = True
    param = parse_text(SOLVER.replace("test_interval: 2 test_iter: 3", ""), pb.SolverParameter)
    param.net_param.CopyFrom(parse_text(text, pb.NetParameter))
    logged.values = []
    Solver(param, NumpyEngine(), noise, workers=workers, exchange=ThreadExchange(workers)).step(3)


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("layer", list(NOISY))
def test_no_two_rows_share_a_mask(
    masks: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, layer: str, way: str
) -> None:
    monkeypatch.setattr(log, "net_outputs", lambda *_: None)
    for noise in ("counter", "caffe") if way != "2 workers" else ("counter",):
        masks.clear()
        with log.quiet(3):
            WAYS[way](WIDE + NOISY[layer] + END, noise)
        if layer == "stochastic" and way == "fcaffe test":
            assert not masks
            continue
        rows = np.stack(masks)
        assert len(rows) >= 15
        assert abs(rows.mean() - 0.5) < 0.05
        equal = max((ours == theirs).mean() for ours, theirs in itertools.combinations(rows, 2))
        assert equal < 0.9, f"two rows share {equal:.0%} of their masks"
