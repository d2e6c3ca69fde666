"""Input: blobs that somebody outside the net writes."""

from __future__ import annotations

from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.net.fillers import holds_values
from fcaffe.net.placements import LOCAL


@register("Input")
class Input(Layer):
    """Tops of the given shapes: one for each, one for all, or none (the code that feeds the net reshapes them)."""

    traits = Traits(bottoms=0, tops=(1, None))

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if holds_values(self.xp):
            self.refuse_split("has values from outside of the net")
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        if len(shapes) not in (0, 1, len(top)):
            raise self.error(f"shape must be given once, once per top or not at all: {len(shapes)} for {len(top)} tops")
        if len(shapes) == 1:
            shapes *= len(top)
        for blob, shape in zip(top, shapes, strict=False):
            if shape and not holds_values(self.xp):  # it stands for a layer that reads batches
                share, blob.placement = self.context.share_of(shape[0])
                shape = (share.count, *shape[1:])
                if shapes[0][0] > 1 == shape[0] and len(shape) == 4 and blob is not top[0]:  # SSD's boxes
                    blob.placement = LOCAL
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        pass
