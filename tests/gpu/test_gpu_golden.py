"""Every layer and whole nets on the GPU against BVLC Caffe, and what all layers must do."""

import pytest

from tests.layers.test_contract import (  # noqa: F401
    test_batch_size_changes,
    test_c_order_gives_the_same,
    test_empty_batch,
    test_in_place_equals_out_of_place,
    test_parameter_gradients_add_up,
)
from tests.layers.test_fork_layers import test_layer as test_fork_layer  # noqa: F401
from tests.layers.test_golden import test_layer  # noqa: F401
from tests.net.test_golden_nets import case, test_values  # noqa: F401

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_gpu")]
