"""Weights of convolutions in an engine's own order: nobody outside the flat buffers can tell."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.model_files import read_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver
from fcaffe.solvers.snapshot.files import read_state

SOLVER = """
type: "%s" base_lr: 0.01 momentum: 0.9 weight_decay: 0.01 lr_policy: "fixed" max_iter: 9 random_seed: 3
snapshot_prefix: "%s" snapshot_format: %s snapshot_diff: %s
net_param {
  layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
    shape { dim: 4 dim: 3 dim: 9 dim: 9 } shape { dim: 4 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
  layer { name: "c1" type: "Convolution" bottom: "x" top: "a" param { name: "shared" } param { name: "bias" }
    convolution_param { num_output: 3 kernel_h: 3 kernel_w: 2 weight_filler { type: "xavier" } } }
  layer { name: "c2" type: "Convolution" bottom: "a" top: "b" param { name: "shared" } param { name: "bias" }
    convolution_param { num_output: 3 kernel_h: 3 kernel_w: 2 weight_filler { type: "xavier" } } }
  layer { name: "up" type: "Deconvolution" bottom: "b" top: "d"
    convolution_param { num_output: 4 kernel_size: 2 stride: 2 weight_filler { type: "msra" } } }
  layer { name: "ip" type: "InnerProduct" bottom: "d" top: "ip"
    inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
}
"""


class ChannelsLast(NumpyEngine):
    weights_channels_last = True


def solver(engine, folder, kind="SGD", hdf5=False, **more):
    text = SOLVER % (kind, folder / "net", "HDF5" if hdf5 else "BINARYPROTO", "false" if hdf5 else "true")
    param = parse_text(text, pb.SolverParameter)
    upgrade_solver(param, "solver")
    return Solver(param, engine(), random=CaffeRandom(3), **more)


def close(ours, theirs):
    return np.abs(ours - theirs).max() <= 1e-6 * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("hdf5", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_files_are_in_caffes_order(tmp_path, kind, hdf5):
    found = []
    for name, engine in (("plain", NumpyEngine), ("last", ChannelsLast)):
        (tmp_path / name).mkdir()
        trained = solver(engine, tmp_path / name, kind, hdf5)
        trained.step(3)
        path = trained.snapshot()
        state = read_state(path)
        found.append(
            (trained, path, [blob for layer in read_model(state.learned_net).layers for blob in layer.blobs], state)
        )
    (_, path, weights, state), (last, _, other_weights, other_state) = found
    assert last.net.layers[1].blobs[0].data.transpose(0, 2, 3, 1).flags.c_contiguous
    assert len(weights) == len(other_weights) and len(state.history) == len(other_state.history)
    for mine, theirs in (
        *zip(weights, other_weights, strict=True),
        *zip(state.history, other_state.history, strict=True),
    ):
        assert mine.shape == theirs.shape and close(mine.data, theirs.data)
        if mine.diff is not None:
            assert close(mine.diff, theirs.diff)
    resumed = solver(ChannelsLast, tmp_path, kind, hdf5)
    resumed.restore(path)
    back = solver(NumpyEngine, tmp_path, kind, hdf5)
    back.restore(found[1][1])
    for one in (found[0][0], resumed, back):
        one.step(3)
    for one in (resumed, back):
        for ours, theirs in zip(one.net.parameters.owned, found[0][0].net.parameters.owned, strict=True):
            assert close(ours.blob.data, theirs.blob.data)
            for flat, other in zip(one.history, found[0][0].history, strict=True):
                places = one.net.parameters.slices, found[0][0].net.parameters.slices
                index = one.net.parameters.owned.index(ours)
                assert close(ours.blob.logical(flat[places[0][index]]), theirs.blob.logical(other[places[1][index]]))


@pytest.mark.parametrize("engine", [NumpyEngine, ChannelsLast])
def test_residuals_are_in_caffes_order(tmp_path, engine):
    """An engine of either order restores its own files, and those of the other."""
    mpi = pytest.importorskip("mpi4py.MPI", reason="needs the extra fcaffe[mpi]")
    from fcaffe.parallel.compression import make_compression
    from fcaffe.parallel.exchange import ReducingExchange

    def another(kind):
        return solver(kind, tmp_path, exchange=ReducingExchange(make_compression("bf16", mpi.COMM_SELF)))

    trained, same = another(engine), another(engine)
    other = another({NumpyEngine, ChannelsLast}.difference([engine]).pop())
    values = np.zeros(trained.net.parameters.extent, np.float32)
    for part in trained.net.parameters.slices:
        values[part] = 1 + np.arange(part.start, part.stop)
    trained.exchange.restore_state({"residual": values})
    path = trained.snapshot()
    in_file = carried(path)
    assert all(array.size == np.count_nonzero(values) for array in in_file.values())
    same.restore(path)
    assert np.array_equal(same.exchange.state()["residual"], values)
    other.restore(path)
    for name, array in carried(other.snapshot()).items():
        assert np.array_equal(array, in_file[name])


def carried(path):
    return {array.name: array.values for array in read_state(path).carried if array.owner == "exchange"}
