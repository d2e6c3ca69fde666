"""PriorBox: the boxes around each position of a feature map that SSD predicts corrections of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.net import ALL_BOTTOMS, Blob, Layer, Traits, register
from fcaffe.net.placements import REPLICATE, Placements, common
from fcaffe.proto import forks

SAME_RATIO = 1e-6


@register("PriorBox")
class PriorBox(Layer):
    """top (1, 2, H * W * P * 4): the corners of P boxes around each position, and the variances of their codes.

    Bottoms: features (N, C, H, W), and the image (N, C, h, w); only their heights and widths count. Corners are
    fractions of the image, positions go row by row. At each position stand, for each min_size: its square, the square
    of side sqrt(min_size * max_size) if there is a max_size, and a box of the square's area for each aspect ratio.
    """

    fork = forks.SSD
    traits = Traits(bottoms=2, tops=1, reshapes_by_shape=True, constants=ALL_BOTTOMS, reads="neither")

    def rule(self, bottom: list[Blob]) -> Placements:
        needed = [common(self, [blob], lambda shard: shard.axis < 2) for blob in bottom]  # sizes of images count
        return needed, [REPLICATE]

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.sizes = self._sizes()  # (P, 2), widths and heights in pixels of the image
        self.variances = list(self.param.prior_box_param.variance) or [0.1]
        if len(self.variances) not in (1, 4) or not min(self.variances) > 0:
            raise self.error(f"variance is given once or four times, above 0, not {self.variances}")
        self.image = self._pair("img_size", "img_w", "img_h")
        self.step = self._pair("step", "step_w", "step_h")
        self.written: Any = None  # the top's values on the device

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if any(len(blob.shape) != 4 for blob in bottom):
            raise self.error(f"needs a feature map and an image of four axes each: {self.named_shapes(bottom)}")
        self.written = None
        top[0].reshape(1, 2, math.prod(bottom[0].shape[2:]) * self.sizes.size * 2)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.written is None:
            self.written = self.engine.from_numpy(self.priors(bottom[0].shape, bottom[1].shape))
        top[0].data[...] = self.written

    def priors(self, features: tuple[int, ...], picture: tuple[int, ...]) -> np.ndarray:
        """The top's values for bottoms of these shapes."""
        p = self.param.prior_box_param
        map_size = np.array(features[:1:-1], np.float32)  # width, height
        image = np.array(self.image or picture[:1:-1], np.float32)
        step = np.array(self.step or image / map_size, np.float32)
        positions = [np.arange(count, dtype=np.float32) + np.float32(p.offset) for count in map_size]
        centres = np.stack(np.meshgrid(*positions), axis=-1)[:, :, None] * step
        corners = np.concatenate([centres - self.sizes / 2, centres + self.sizes / 2], axis=-1) / np.tile(image, 2)
        corners = (np.clip(corners, 0, 1) if p.clip else corners).reshape(-1)
        return np.stack([corners, np.resize(self.variances, corners.size)])[None]

    def _sizes(self) -> np.ndarray:
        p = self.param.prior_box_param
        smallest, largest = ([int(size) for size in sizes] for sizes in (p.min_size, p.max_size))  # as in SSD
        if not smallest or min(smallest) < 1:
            raise self.error("prior_box_param needs min_size, once or more, of at least 1 pixel")
        if largest and (len(largest) != len(smallest) or any(a >= b for a, b in zip(smallest, largest, strict=True))):
            raise self.error("needs as many max_size as min_size, or none, and each above its min_size")
        ratios = np.sqrt(np.array(self._ratios(), np.float32))
        sizes: list[tuple[float, float]] = []
        for index, side in enumerate(smallest):
            sizes.append((side, side))
            if largest:
                sizes.append((math.sqrt(side * largest[index]),) * 2)
            sizes += [(side * root, side / root) for root in ratios]
        return np.array(sizes, np.float32)

    def _ratios(self) -> list[float]:
        """The aspect ratios other than 1."""
        p = self.param.prior_box_param
        ratios = [1.0]
        for ratio in p.aspect_ratio:
            if not ratio > 0:
                raise self.error(f"aspect_ratio must be above 0, not {ratio:g}")
            if all(abs(ratio - other) >= SAME_RATIO for other in ratios):
                ratios += [ratio, 1 / ratio] if p.flip else [ratio]
        return ratios[1:]

    def _pair(self, both: str, width: str, height: str) -> tuple[float, float] | None:
        """(width, height) from the common field or from the two single ones; None if none is given."""
        p = self.param.prior_box_param
        given = [field for field in (both, width, height) if p.HasField(field)]
        if not given:
            return None
        if given not in ([both], [width, height]) or not min(getattr(p, field) for field in given) > 0:
            raise self.error(f"give either {both}, or both {height} and {width}, above 0")
        return getattr(p, given[0]), getattr(p, given[-1])
