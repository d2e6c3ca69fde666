"""A small Faster R-CNN whose layers for anchors and proposals are Python code, as in scripts of that time.

Their tops have other shapes in every pass.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from fcaffe.as_caffe import provide_caffe
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from tests.engine_choice import engine

FOLDER = Path(__file__).parent / "faster_rcnn"
LOSSES = ["rpn_cls_loss", "rpn_loss_bbox", "loss_cls", "loss_bbox"]
SOLVER = f"""train_net: "{FOLDER}/train.prototxt" base_lr: 0.02 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005
  max_iter: 20 display: 0 random_seed: 1 snapshot_after_train: false"""


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    before = set(sys.modules)
    provide_caffe()
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("caffe", "rpn", "roi_data_layer"):
            del sys.modules[name]


def test_a_script_trains_it(tmp_path):
    import caffe

    path = tmp_path / "solver.prototxt"
    path.write_text(SOLVER)
    solver = caffe.SGDSolver(str(path))
    losses, shapes = [], []
    for _ in range(20):
        solver.step(1)
        losses.append([float(solver.net.blobs[name].data) for name in LOSSES])
        shapes.append((solver.net.blobs["data"].data.shape, solver.net.blobs["pool"].data.shape))
    losses = np.array(losses)
    assert losses[10:].sum(axis=1).mean() < 0.75 * losses[:3].sum(axis=1).mean()
    assert (losses[10:, 0] < 0.5).all() and losses[10:, 2].mean() < 0.9
    assert len(set(shapes)) > 10
    source = solver.net.layers[list(solver.net._layer_names).index("input-data")]
    assert [shape[2:] for shape, _ in shapes] == [(height, width) for height, width, _ in source.served[-20:]]
    solver.net.save(str(tmp_path / "trained.caffemodel"))

    net = caffe.Net(str(FOLDER / "train.prototxt"), str(tmp_path / "trained.caffemodel"), caffe.TEST)
    regions = net.forward() and net.blobs["rpn_rois"].data
    height, width = net.blobs["data"].data.shape[2:]
    assert 1 <= len(regions) <= 10 and (regions[:, 3] < width).all() and (regions[:, 4] < height).all()


def test_whole_passes_train_it_alike():
    """`fcaffe train` shares memory between blobs; it plans that anew only if a blob grows."""
    found = []
    for whole in (False, True):
        solver = Solver(parse_text(SOLVER, pb.SolverParameter), engine(), whole_passes=whole)
        losses, layouts = [], []
        for _ in range(20):
            solver.step(1)
            losses.append([float(solver.net.blob(name).data) for name in LOSSES])
            layouts.append(solver.net.arena.version)
        found.append(losses)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert 1 <= len(set(layouts)) <= 10
