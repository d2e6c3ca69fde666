"""Im2col: the windows that a convolution would look at, spread out."""

from __future__ import annotations

from fcaffe.layers.convolution import Sliding
from fcaffe.net import Blob, Traits, register


@register("Im2col")
class Im2col(Sliding):
    """top (N, C * kernel, sizes...) = the values of each window, channel by channel, in row order.

    Windows are those of convolution_param; num_output and group mean nothing here.
    """

    traits = Traits(bottoms=1, tops=1)
    ignores_propagate_down = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.find_windows(bottom[0])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        shape = bottom[0].shape
        top[0].reshape(*self.top_shape(shape, shape[self.axis] * self.windows.size))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        y = self.images(top[0].data)
        self.engine.im2col(self.images(bottom[0].data), y, self.windows)
        self.put_back(y, top[0].data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx = self.images(bottom[0].diff)
        self.engine.col2im(self.images(top[0].diff), dx, self.windows)
        self.put_back(dx, bottom[0].diff)
