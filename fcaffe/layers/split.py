"""Split, which the net puts behind a blob with several readers, and Silence, which reads a blob that has none."""

from __future__ import annotations

from fcaffe.net import Blob, Half, Layer, Traits, placements, register


@register("Split")
class Split(Layer):
    """All tops are the bottom (the very same memory); its gradient is the sum of theirs."""

    traits = Traits(
        bottoms=1,
        tops=(1, None),
        half=Half.SAME,
        reshapes_by_shape=True,
        aliases=True,
        overwrites_gradient=True,
        in_place=False,
        reads="neither",
    )

    rule = placements.unchanged

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for blob in top:
            blob.reshape(*bottom[0].shape)
            blob.share_data(bottom[0])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.engine.weighted_sum([blob.diff for blob in top], [1.0] * len(top), bottom[0].diff)


@register("Silence")
class Silence(Layer):
    """Takes blobs so that they are no outputs of the net."""

    traits = Traits(bottoms=(1, None), tops=0, reads="tops")
    rule = placements.unchanged

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        for x, down in zip(bottom, propagate_down, strict=True):
            if down:
                x.diff[...] = 0
