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


def dropout_net(batch, ratio):
    ones = f"data_filler {{ value: 1 }} shape {{ dim: {batch} dim: 9 }}"
    drop = f"dropout_param {{ dropout_ratio: {ratio} }}"
    return make_net(
        f'layer {{ name: "ones" type: "DummyData" top: "ones" dummy_data_param {{ {ones} }} }}'
        f'layer {{ name: "drop" type: "Dropout" bottom: "ones" top: "drop" {drop} }}'
    )


def test_counter_noise_does_not_depend_on_how_the_batch_is_shared():
    def dropped(batch, first_sample):
        net = dropout_net(batch, 0.5)
        net.context.noise, net.context.first_sample = "counter", first_sample
        net.forward()
        return net.blob("drop").data

    whole = dropped(6, 0)
    assert 0 < (whole == 0).mean() < 1
    np.testing.assert_array_equal(np.concatenate([dropped(2, 0), dropped(4, 2)]), whole)
