"""Convolution with folded weights, a sum and ReLU, by one oneDNN primitive."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from fcaffe.engines.channels import is_channels_last
from fcaffe.engines.convolution import Folded
from fcaffe.engines.memory import Array
from fcaffe.engines.onednn.calls import address
from fcaffe.engines.onednn.convolution import Convolution, is_supported
from fcaffe.engines.windows import Windows


class FoldedConvolution(Convolution):
    """Arguments as of Convolution."""

    _can_add: dict[Hashable, bool]

    def folded_convolution(
        self, x: Array, folded: Folded, y: Array, windows: Windows, group: int, relu: bool, plus: Array | None
    ) -> bool:
        """Caches the folded weights in the primitive's own layout."""
        if not is_supported(x, windows):
            return super().folded_convolution(x, folded, y, windows, group, relu, plus)
        if plus is not None and not (is_channels_last(plus) and is_channels_last(y)):
            with self.channels_last([plus], [y]) as (plus_, y_):
                return self.folded_convolution(x, folded, y_, windows, group, relu, plus_)
        weights = (sources := folded.sources())[0]
        within = plus is None or self._can_add_within(x, weights, y, windows, group, relu, plus)
        added = plus if within else None
        operation = self._forward(x, weights, True, y, windows, group, relu and within, added)

        def make() -> tuple[Array, Array]:
            weights, bias = folded.make()
            return operation.ready(1, np.ascontiguousarray(weights)), bias

        made = self.of_weights(sources, (folded, operation), make)
        if made is None:
            return False
        self.library.hold(*made)
        outs = (address(y),) if added is None else (address(y), address(added))
        operation((address(x), address(made[0]), address(made[1])), outs, ready=1)
        if not within:
            self.add_to(plus, y, relu)
        return True

    def _can_add_within(
        self, x: Array, weights: Array, y: Array, windows: Windows, group: int, relu: bool, plus: Array
    ) -> bool:
        """Whether the convolution can add `plus` as it stores its outputs, by other than the reference code."""
        key = "adds", x.shape, weights.shape, y.shape, y.strides, plus.strides, windows, group
        found = self._can_add.get(key)
        if found is None:
            found = self._can_add[key] = (
                plus.strides == y.strides
                and "ref" not in self._describe_forward(x, weights, True, y, windows, group, relu, plus).name
            )
        return found
