"""Parameter: a blob of the net that is learned itself."""

from __future__ import annotations

from fcaffe.net import Blob, Layer, Traits, register


@register("Parameter")
class Parameter(Layer):
    """top = a parameter of this `shape`, the very same memory; it starts at 0."""

    traits = Traits(bottoms=0, tops=1)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.add_blob().reshape(*self.param.parameter_param.shape.dim)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*self.blobs[0].shape)
        top[0].share_data(self.blobs[0])  # each time: the parameter moves when it is shared with another layer

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        # In Caffe the gradient is shared too, so that with iter_size the last pass overwrites those before it.
        if self.param_propagate_down[0]:
            self.blobs[0].diff[...] += top[0].diff
