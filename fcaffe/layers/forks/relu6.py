"""ReLU6: a ReLU that is at most 6."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.activations import Activation
from fcaffe.net import Blob, register
from fcaffe.proto import forks

MOST = 6


@register("ReLU6")
class ReLU6(Activation):
    """top = min(max(x, 0), 6) + negative_slope * min(x, 0). At 6 the gradient is 0, at 0 the slope. In place too."""

    fork = forks.YOLO
    traits = replace(Activation.traits, by_sample=True)

    @property
    def slope(self) -> float:
        return float(self.param.relu6_param.negative_slope)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        leak = self.xp.minimum(x, 0) * self.xp.float32(self.slope) if self.slope else None
        self.xp.clip(x, 0, MOST, out=y)
        if leak is not None:
            y += leak

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return bottom if self.slope < 0 or self.top_is_overwritten else top

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            x = self.saved(bottom, top)[0].data  # the top is between 0 and 6 where the bottom is
            gain = (x > 0) & (x < MOST)
            if self.slope:
                gain = gain + self.xp.float32(self.slope) * (x <= 0)
            self.xp.multiply(top[0].diff, gain, out=bottom[0].diff)
