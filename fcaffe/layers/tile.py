"""Tile: a blob several times over along one axis."""

from __future__ import annotations

from fcaffe.net import Blob, Layer, Traits, placements, register


@register("Tile")
class Tile(Layer):
    """top = the bottom `tiles` times, one after the other along `axis`."""

    traits = Traits(bottoms=1, tops=1)
    rule = placements.between(lambda layer, x: [x.canonical_axis(layer.param.tile_param.axis)])

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p, shape = self.param.tile_param, bottom[0].shape
        if p.tiles < 1:
            raise self.error("tile_param.tiles must be positive")
        self.axis = bottom[0].canonical_axis(p.axis)
        top[0].reshape(*shape[: self.axis], shape[self.axis] * p.tiles, *shape[self.axis + 1 :])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0].data
        top[0].data[...] = self.xp.concatenate([x] * self.param.tile_param.tiles, axis=self.axis)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        shape = bottom[0].shape
        tiles = top[0].diff.reshape(*shape[: self.axis], self.param.tile_param.tiles, *shape[self.axis :])
        bottom[0].diff[...] = tiles.sum(axis=self.axis)
