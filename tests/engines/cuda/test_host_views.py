"""What scripts and Python layers see of blobs on a device: arrays of NumPy, whose values the net takes over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe.net import Blob
from fcaffe.net.script.host_arrays import host_views
from fcaffe.pycaffe import session
from tests import engine_choice
from tests.engines.cuda import stand_in_cupy
from tests.engines.cuda.test_plain_on_stand_in import PlainOnDevice
from tests.pycaffe.test_net import (  # noqa: F401
    net,
    path,
    test_forward_and_backward_by_name,
    test_names_are_pycaffes,
)
from tests.pycaffe.test_python import (  # noqa: F401
    test_a_loss_needs_its_weight,
    test_an_exception_says_where,
    test_parameters_and_what_a_script_sees,
    test_phase,
    test_trains_as_with_the_built_in_loss,
    test_views_of_other_shapes_write_the_blobs,
)
from tests.pycaffe.test_solver import (  # noqa: F401
    solver,
    test_snapshot_and_restore,
    test_test_nets_share_the_weights,
)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainOnDevice]:
    made = PlainOnDevice()
    monkeypatch.setattr(engine_choice, "chosen", lambda: made)
    monkeypatch.setattr(session, "engine", lambda: made)
    stand_in_cupy.install(monkeypatch)
    yield made
    stand_in_cupy.reset()


def test_what_is_written_counts_in_the_next_pass(net: caffe.Net) -> None:  # noqa: F811
    before = net.forward(blobs=["ip"])["ip"].copy()
    net.params["ip"][1].data[...] += 1
    np.testing.assert_allclose(net.forward(blobs=["ip"])["ip"], before + 1, rtol=1e-5, atol=1e-6)


def test_reading_after_a_pass_does_not_bring_the_old_values_back(solver: caffe.SGDSolver) -> None:  # noqa: F811
    start = solver.net.params["ip"][0].data.copy()
    solver.step(1)
    once = solver.net.params["ip"][0].data.copy()
    solver.step(1)
    assert not np.array_equal(once, start)
    assert not np.array_equal(solver.net.params["ip"][0].data, once)


def test_weights_written_in_a_callback_count_in_the_update(solver: caffe.SGDSolver) -> None:  # noqa: F811
    solver.add_callback(lambda: None, lambda: solver.net.params["ip"][0].diff.fill(0))
    solver.add_callback(lambda: None, lambda: solver.net.params["ip"][0].data.fill(5))
    solver.step(1)
    assert np.all(solver.net.params["ip"][0].data == 5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_blobs_of_one_memory_in_several_shapes(engine: PlainOnDevice, dtype: str) -> None:
    views = host_views(engine)
    first = Blob(engine.xp, (2, 3, 4, 5), channels_last=True, dtype=dtype)
    second = Blob(engine.xp, (2, 60), dtype=dtype)
    second.share_data(first)
    values = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    views.data(first)[...] = values
    assert views.data(first).dtype == np.float32
    assert views.data(second).shape == (2, 60)
    np.testing.assert_array_equal(views.data(first), values)
    views.push()
    np.testing.assert_array_equal(stand_in_cupy.host(first.data), values)
    assert not first.data.flags.c_contiguous


def test_addresses_for_libraries_that_work_on_the_device(net: caffe.Net) -> None:  # noqa: F811
    """The values lie there in C order, with what the script has written last."""
    data = net.blobs["data"]
    data.data[...] = np.arange(180).reshape(2, 3, 6, 5)
    for address in (data._gpu_data_ptr, net.params["conv"][0]._gpu_diff_ptr):
        assert address > 0
    values = data._blob.data
    assert values.flags.c_contiguous and values.data.ptr == data._gpu_data_ptr
    assert engine_choice.host(values).ravel().tolist() == list(range(180))
    net.forward()
    assert data.data.ravel().tolist() == list(range(180))
