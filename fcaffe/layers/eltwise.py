"""Eltwise: product, weighted sum or maximum of blobs of one shape, value by value."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fcaffe import log
from fcaffe.engines.formulas import Formula
from fcaffe.net import Array, Blob, Half, Layer, Traits, register
from fcaffe.net.placements import PARTIAL, Placements, elementwise, unchanged
from fcaffe.proto import caffe_pb2 as pb

# Of MAX. A NaN among the first two bottoms makes the second the largest, as in Caffe.
SECOND, MAXIMUM = Formula("1 - (a > b)"), Formula("max(b, a)")
GRADIENT = "select((largest >= index) * (largest <= index), dy)"

PROD, SUM, MAX = pb.EltwiseParameter.PROD, pb.EltwiseParameter.SUM, pb.EltwiseParameter.MAX


@register("Eltwise")
class Eltwise(Layer):
    """PROD, SUM (times `coeff`, one per bottom) or MAX of the bottoms.

    MAX gives its gradient to one bottom: of equal ones to the second, unless a later one is strictly larger.
    """

    traits = Traits(bottoms=(2, None), tops=1, reshapes_by_shape=True, overwrites_gradient=True)

    def rule(self, bottom: list[Blob]) -> Placements:
        adds = self.param.eltwise_param.operation == SUM
        return (unchanged if adds and all(blob.placement == PARTIAL for blob in bottom) else elementwise)(self, bottom)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.eltwise_param
        self.operation = p.operation
        if p.coeff and self.operation != SUM:
            raise self.error("coeff is for operation: SUM only")
        if p.coeff and len(p.coeff) != len(bottom):
            raise self.error(f"coeff must be given once per bottom or not at all: {len(p.coeff)} for {len(bottom)}")
        half = Half.SAME_IN_XP if self.operation != SUM or top[0] is bottom[0] else Half.SAME
        of_product: Literal["bottoms", "both"] = "bottoms" if p.stable_prod_grad else "both"
        self.traits = replace(self.traits, half=half, reads=of_product if self.operation == PROD else "neither")
        self.coeffs = list(p.coeff) or [1.0] * len(bottom)
        self.largest = Blob(self.xp, (), channels_last=True)  # for MAX: the index of the bottom that has it
        indices = range(len(bottom)) if self.operation == MAX else ()
        self.of_largest = [Formula(GRADIENT, index=index) for index in indices]
        if top[0] is bottom[0] and self.operation == SUM:
            log.warning(f"layer {self.name}: a SUM in place loses its first bottom, as in Caffe; rename its top")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if any(blob.shape != bottom[0].shape for blob in bottom):
            raise self.error(f"all bottoms must have one shape: {self.named_shapes(bottom)}")
        top[0].reshape(*bottom[0].shape)
        if self.operation == MAX:
            self.largest.reshape(*bottom[0].shape)

    @property
    def adds_two(self) -> bool:
        """Whether it is the sum of two bottoms as they are, and loses none by working in place."""
        in_place = self.param.top[0] in self.param.bottom
        return self.operation == SUM and self.coeffs == [1.0, 1.0] and not in_place

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        xs, y = [blob.data for blob in bottom], top[0].data
        if self.operation == PROD:
            self._multiply(xs, y)
        elif self.operation == SUM:
            if top[0] is bottom[0]:
                y[...] = 0
            self.engine.weighted_sum(xs, self.coeffs, y)
        else:
            self._take_largest(xs, y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        dy = top[0].diff
        indices = range(len(bottom))
        # The gradient of the first may overwrite that of the top. In place it does so at once, as in Caffe.
        for index in indices if top[0] is bottom[0] else reversed(indices):
            blob, keeps = bottom[index], self.operation == SUM and self.coeffs[index] == 1
            if not propagate_down[index] or (keeps and blob.shares_diff(top[0])):
                continue
            if self.operation == PROD:
                self.engine.multiply(dy, self._product_of_others(index, bottom, top[0]), blob.diff)
            elif self.operation == SUM:
                self.engine.weighted_sum([dy], [self.coeffs[index]], blob.diff)
            else:
                self.engine.pointwise(self.of_largest[index], {"largest": self.largest.data, "dy": dy}, blob.diff)

    def _multiply(self, xs: list[Array], y: Array) -> None:
        self.engine.multiply(xs[0], xs[1], y)
        for x in xs[2:]:
            self.engine.multiply(y, x, y)

    def _product_of_others(self, index: int, bottom: list[Blob], top: Blob) -> Array:
        if not self.param.eltwise_param.stable_prod_grad:
            return top.data / bottom[index].data
        others = [blob.data for i, blob in enumerate(bottom) if i != index]
        if len(others) == 1:
            return others[0]
        product = self.xp.empty_like(others[0])
        self._multiply(others, product)
        return product

    def _take_largest(self, xs: list[Array], y: Array) -> None:
        """y = the maximum, self.largest = the index of the bottom that has it."""
        largest, first = self.largest.data, {"a": xs[0], "b": xs[1]}
        self.engine.pointwise(SECOND, first, largest)
        self.engine.pointwise(MAXIMUM, first, y)
        for index in range(2, len(xs)):
            larger = xs[index] > y
            self.xp.copyto(y, xs[index], where=larger)
            self.xp.copyto(largest, index, where=larger)
