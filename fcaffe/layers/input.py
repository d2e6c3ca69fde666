"""Input: blobs that somebody outside the net writes."""

from __future__ import annotations

from fcaffe.net import Blob, Layer, Traits, register


@register("Input")
class Input(Layer):
    """Tops of the given shapes: one for each, one for all, or none (the code that feeds the net reshapes them)."""

    traits = Traits(bottoms=0, tops=(1, None))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.refuse_split("has values from outside of the net")
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        if len(shapes) not in (0, 1, len(top)):
            raise self.error(f"shape must be given once, once per top or not at all: {len(shapes)} for {len(top)} tops")
        if len(shapes) == 1:
            shapes *= len(top)
        for blob, shape in zip(top, shapes, strict=False):
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass
