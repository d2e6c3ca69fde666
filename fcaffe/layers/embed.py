"""Embed: rows looked up in a table of vectors."""

from __future__ import annotations

from fcaffe.layers.labels import read_indices
from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits, placements, register


@register("Embed")
class Embed(Layer):
    """top (..., num_output) = weights (input_dim, num_output)[bottom (...)] + bias: an InnerProduct of one-hot vectors.

    The bottom holds indices from 0 to input_dim - 1; it gets no gradient.
    """

    traits = Traits(bottoms=1, tops=1, labels=ALL_BOTTOMS)
    rule = placements.elementwise

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.embed_param
        if p.num_output < 1 or p.input_dim < 1:
            raise self.error("embed_param.num_output and input_dim must be positive")
        self.add_blob(p.input_dim, p.num_output, filler=p.weight_filler)
        if p.bias_term:
            self.add_blob(p.num_output, filler=p.bias_filler)
        self.indices = Blob(self.xp, dtype="int64")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape, self.param.embed_param.num_output)
        self.indices.reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, y = self.param.embed_param, top[0].data
        self.indices.data[...], _, wrong = read_indices(self, bottom, 0, p.input_dim, "its table (input_dim)")
        y[...] = self.blobs[0].data[self.indices.data]
        if p.bias_term:
            y += self.blobs[1].data
        self.xp.copyto(y, self.xp.nan, where=wrong[..., None])

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        p, dy = self.param.embed_param, top[0].diff
        if self.param_propagate_down[0]:
            self.engine.add_rows(dy, self.indices.data, self.blobs[0].diff)
        if p.bias_term and self.param_propagate_down[1]:
            self.engine.bias_backward(dy.reshape(-1, p.num_output), *self.blobs[1].diff_to_add())
