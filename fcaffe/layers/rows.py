"""Rows selected by index: Embed from a table of vectors, BatchReindex and Filter from a batch."""

from __future__ import annotations

from dataclasses import replace

from fcaffe.layers.labels import read_indices
from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits, placements, register
from fcaffe.net.placements import Placements, common, first_axis


@register("Embed")
class Embed(Layer):
    """top (..., num_output) = weights (input_dim, num_output)[bottom (...)] + bias: an InnerProduct of one-hot vectors.

    The bottom holds indices from 0 to input_dim - 1; it gets no gradient.
    """

    traits = Traits(bottoms=1, tops=1, labels=ALL_BOTTOMS, reads="neither")
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


@register("Filter")
class Filter(Layer):
    """tops = of each bottom but the last one, those samples for which the last one, (N,) or (N, 1, ...), is not 0.

    How many these are changes from pass to pass, and the tops' first dimension with it; it may be 0. While a net is
    being built there is nothing in the selector yet, and all samples count.
    """

    traits = Traits(bottoms=(2, None), tops=(1, None), needs_host=True, reads="neither")

    def rule(self, bottom: list[Blob]) -> Placements:
        placement = common(self, bottom, first_axis)
        return [placement] * len(bottom), [replace(placement, chosen_by=self)]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(top) != len(bottom) - 1:
            raise self.error(f"{len(bottom)} bottoms, the last of them the selector, need {len(bottom) - 1} tops")
        self.workers.run_shards_in_step()  # losses count the samples of all
        self.is_built = False
        self.traits = replace(self.traits, labels=(len(top),))  # the selector

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        samples = bottom[-1].count
        if any(blob.shape[:1] != (samples,) for blob in bottom):
            raise self.error(f"its selector, the last bottom, needs one value per sample: {self.named_shapes(bottom)}")
        self.chosen = self.xp.arange(samples)
        if self.is_built:
            self.chosen = self.chosen[bottom[-1].data.reshape(-1) != 0]
        self.is_built = True
        for x, y in zip(bottom, top, strict=False):
            y.reshape(len(self.chosen), *x.shape[1:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        for x, y in zip(bottom, top, strict=False):
            y.data[...] = x.data[self.chosen]

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for x, y, down in zip(bottom, top, propagate_down, strict=False):
            if down:
                dx = x.diff
                dx[...] = 0
                dx[self.chosen] = y.diff


@register("BatchReindex")
class BatchReindex(Layer):
    """top[i] = bottom[0][bottom[1][i]]: samples in another order, left out or repeated."""

    traits = Traits(bottoms=2, tops=1, labels=(1,), reads="neither")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.chosen = Blob(self.xp, dtype="int64")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom[1].shape) != 1:
            raise self.error(f"needs indices of one axis: {self.named_shapes(bottom)}")
        self.chosen.reshape(*bottom[1].shape)
        top[0].reshape(*bottom[1].shape, *bottom[0].shape[1:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        self.chosen.data[...], _, wrong = read_indices(self, bottom, 1, bottom[0].shape[0], self.bottom_name(0))
        if x.size:
            y[...] = x[self.chosen.data]
        self.xp.copyto(y, self.xp.nan, where=wrong.reshape(-1, *(1,) * (y.ndim - 1)))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dx = bottom[0].diff
        dx[...] = 0
        self.engine.add_rows(top[0].diff, self.chosen.data, dx)
