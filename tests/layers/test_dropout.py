"""Dropout's masks, and random DummyData, come from one stream in Caffe's order of draws."""

import numpy as np
import pytest

from tests.conftest import GOLDEN, make_net


@pytest.mark.parametrize("seed", [1, 42, 1701])
def test_masks_are_caffes(seed):
    with np.load(GOLDEN / "fillers" / f"dropout_seed{seed}.npz") as file:
        golden = dict(file)
    net = make_net(str(golden["prototxt"]), seed=seed)
    for number in range(3):
        net.forward()
        for name in ("noise", "half", "fifth", "most", "chain"):
            np.testing.assert_array_equal(net.blob(name).data, golden[f"pass{number}/{name}"], err_msg=name)
