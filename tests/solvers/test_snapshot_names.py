"""Names of layers that HDF5 cannot hold are refused before the training, never at the first snapshot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fcaffe.engines import cpu_engine
from fcaffe.errors import SnapshotError
from fcaffe.model_files import read_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.solvers import Solver
from tests.solvers.training import weights_of

pytest.importorskip("h5py")

NET = """
layer { name: "in" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } data_filler { value: 1 } } }
layer { type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 2
  weight_filler { type: "uniform" } } }
layer { type: "ReLU" bottom: "a" top: "a" }
layer { type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 2
  weight_filler { type: "uniform" } } }
layer { name: "loss" type: "Reduction" bottom: "b" top: "loss" loss_weight: 1 }
"""
PARTS = st.sampled_from(["ip", "ip2", "0", "1", "2", "a b", ".", "..", "", "data", "\u00e9", "a\0b"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


@settings(
    deadline=None, max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.lists(NAMES, min_size=3, max_size=3))
def test_any_names(names: list[str], tmp_path: Path) -> None:
    param = pb.SolverParameter(base_lr=0.1, lr_policy="fixed", max_iter=1, snapshot_prefix=str(tmp_path / "s"))
    param.snapshot_format = pb.SolverParameter.HDF5
    param.net_param.CopyFrom(parse_text(NET, pb.NetParameter))
    for layer, name in zip(param.net_param.layer[1:], names, strict=False):
        layer.name = name
    try:
        solver = Solver(param, cpu_engine(), "counter")
    except SnapshotError as problem:
        said = str(problem).replace(r"\x00", "\0")
        assert any(f'"{name}"' in said for name in names) and "HDF5 cannot hold" in said
        return
    solver.solve()
    stored = read_model(tmp_path / "s_iter_1.caffemodel.h5")
    found = [blob.data for layer in stored.layers for blob in layer.blobs]
    assert [layer.name for layer in stored.layers] == [layer.name for layer in solver.net.layers]
    for ours, theirs in zip(found, weights_of(solver).values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
