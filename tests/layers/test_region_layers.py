"""Errors of layers that read regions of interest, and of the losses beside them."""

import numpy as np
import pytest

from fcaffe.errors import LayerError
from tests.conftest import make_net

REGIONS = """layer {{ name: "in" type: "Input" top: "maps" top: "rois"
  input_param {{ shape {{ dim: 2 dim: 4 dim: 5 dim: 6 }} shape {{ dim: 3 dim: 5 }} }} }}
layer {{ name: "pool" type: "{type}" bottom: "maps" bottom: "rois" top: "pooled" {param} }}"""

POOLINGS = {
    "ROIPooling": "roi_pooling_param { pooled_h: 2 pooled_w: 2 }",
    "PSROIPooling": "psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 1 }",
    "ROIAlign": "roi_align_param { pooled_h: 2 pooled_w: 2 }",
}


@pytest.mark.parametrize(("kind", "param"), POOLINGS.items())
@pytest.mark.parametrize("region", [(2, 0, 0, 3, 3), (-1, 0, 0, 3, 3), (0, 0, np.nan, 3, 3), (1, 0, 0, np.inf, 3)])
def test_what_is_no_region_is_refused(kind, param, region):
    net = make_net(REGIONS.format(type=kind, param=param))
    net.blob("rois").data[1] = region
    with pytest.raises(LayerError, match=r'layer "pool" .*row 1 of "rois" is no region of the 2 image'):
        net.forward()


@pytest.mark.parametrize(("kind", "param"), POOLINGS.items())
def test_regions_far_outside_the_maps_give_zeros(kind, param):
    net = make_net(REGIONS.format(type=kind, param=param))
    net.blob("maps").data[...] = 1
    net.blob("rois").data[...] = [[0, 50, 50, 90, 90], [1, -1e9, -1e9, -1e8, -1e8], [0, 1e30, 1e30, 3e38, 3e38]]
    net.forward()
    assert not net.blob("pooled").data.any()


@pytest.mark.parametrize(
    ("kind", "param", "message"),
    [
        ("ROIPooling", "", "needs pooled_h and pooled_w"),
        ("PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 1 }", "= 8 channels"),
        ("PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 }", "needs output_dim, .*spatial_scale"),
        ("ROIAlign", "roi_align_param { pooled_h: 1 pooled_w: 1 sampling_ratio: 1000 }", "sampling_ratio"),
    ],
)
def test_parameters(kind, param, message):
    with pytest.raises(LayerError, match=message):
        make_net(REGIONS.format(type=kind, param=param))


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "SigmoidCrossEntropyLoss"])
def test_losses_of_bvlc_refuse_pre_fixed(kind):
    """Ignoring it would change the loss."""
    with pytest.raises(LayerError, match="PRE_FIXED belongs to the OHEM losses"):
        make_net(f"""layer {{ name: "in" type: "Input" top: "x" top: "t"
          input_param {{ shape {{ dim: 2 dim: 1 }} shape {{ dim: 2 dim: 1 }} }} }}
        layer {{ name: "loss" type: "{kind}" bottom: "x" bottom: "t" top: "l"
          loss_param {{ normalization: PRE_FIXED }} }}""")
