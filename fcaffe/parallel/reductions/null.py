from __future__ import annotations

import numpy as np

from fcaffe.parallel.reductions.reduction import Reduction, register


@register("null", gpu=True)
@register("null")
class Null(Reduction):
    """No communication: each rank has its own gradients. For measuring the rest of a training."""

    def add_up(self, buffer: np.ndarray) -> None:
        pass
