"""Boxes where objects may be: SSD's PriorBox, and Proposal, what a region proposal network finds (Ren et al. 2015)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcaffe.data import boxes
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


REGION = 5  # image in the batch, x1, y1, x2, y2


@register("Proposal")
class Proposal(Layer):
    """tops: regions (R, 5) of image index, x1, y1, x2, y2 in pixels, and, if asked for, their scores (R,).

    Bottoms: probabilities (N, 2 A, H, W) of background, then of objects, for A anchors at each cell; codes
    (N, 4 A, H, W); image sizes (N, 3) of height, width and scale, or (N, 4) with a scale for each axis. The anchors are
    all ratios of a square of `base_size`, each in all scales. Decoded boxes are clipped to the image. Of the
    `pre_nms_topn` best boxes, any that overlaps a better one by more than `nms_thresh` is dropped, and the first
    `post_nms_topn` remain. A box smaller than `min_size` times the scale has score 0. R changes from pass to pass. The
    bottoms get zeros as gradient, since the regions count as constants.
    """

    fork = forks.PVANET
    traits = Traits(bottoms=3, tops=(1, 2), needs_host=True, constants=ALL_BOTTOMS, reads="neither")

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.proposal_param
        if not p.ratio or not p.scale or min([*p.ratio, *p.scale]) <= 0:
            raise self.error("proposal_param needs ratio and scale, both positive, such as ratio: 1 scale: 8 scale: 16")
        if min(p.feat_stride, p.base_size, p.pre_nms_topn, p.post_nms_topn) < 1:
            raise self.error("feat_stride, base_size, pre_nms_topn and post_nms_topn must be at least 1")
        self.anchors = anchors(p.base_size, np.float32(p.ratio), np.float32(p.scale))

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        scores, codes, sizes = bottom
        count, images = len(self.anchors), scores.shape[0] if scores.shape else 0
        cells = scores.shape[2:]
        fits = scores.shape == (images, 2 * count, *cells) and codes.shape == (images, 4 * count, *cells)
        if len(cells) != 2 or not fits or sizes.count not in (3 * images, 4 * images):
            raise self.error(
                f"with {count} anchors needs scores (N, {2 * count}, H, W), codes (N, {4 * count}, H, W) and sizes "
                f"(N, 3) or (N, 4): {self.named_shapes(bottom)}; correct ratio and scale"
            )
        if not top[0].shape:  # at set-up
            rows = images * self.param.proposal_param.post_nms_topn
            for blob, shape in zip(top, ((rows, REGION), (rows,)), strict=False):
                blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        scores, codes, sizes = (self.engine.to_numpy(blob.data) for blob in bottom)
        count, (images, _, height, width) = len(self.anchors), scores.shape
        proposals = height * width * count
        scores = scores[:, count:].transpose(0, 2, 3, 1).reshape(images, proposals)
        codes = codes.reshape(images, count, 4, height, width).transpose(0, 3, 4, 1, 2).reshape(images, proposals, 4)
        sizes = sizes.reshape(images, sizes.size // max(1, images))
        stride = self.param.proposal_param.feat_stride
        shifts = np.stack(np.meshgrid(np.arange(width), np.arange(height)) * 2, axis=-1) * np.float32(stride)
        shifted = (shifts[:, :, None] + self.anchors).reshape(-1, 4).astype(np.float32)
        found = [np.empty((0, REGION + 1), np.float32)]
        for image, inputs in enumerate(zip(scores, codes, sizes, strict=True)):
            found.append(np.insert(self._of_image(*inputs, shifted), 0, image, axis=1))
        rows = np.concatenate(found)
        for blob, values in zip(top, (rows[:, :REGION], rows[:, REGION]), strict=False):
            blob.reshape(*values.shape)
            blob.data[...] = self.engine.from_numpy(values)

    def _of_image(self, scores: np.ndarray, codes: np.ndarray, size: np.ndarray, shifted: np.ndarray) -> np.ndarray:
        """Boxes and their scores (R, 5), best first, from scores (B,), codes (B, 4) and shifted anchors (B, 4)."""
        p = self.param.proposal_param
        found = boxes.decode(codes, shifted + np.array([0, 0, 1, 1], np.float32), None, boxes.CENTER_SIZE)
        found = np.clip(found, 0, (size[[1, 0, 1, 0]] - 1).astype(np.float32))
        sides = found[:, 2:] - found[:, :2] + 1
        scores = np.where((sides >= p.min_size * size[[-1, 2]]).all(axis=1), scores, 0)
        usable = np.flatnonzero(np.isfinite(found).all(axis=1) & np.isfinite(scores))
        best = usable[boxes.falling(scores[usable], p.pre_nms_topn)]
        kept = best[boxes.suppress(found[best], p.nms_thresh, limit=p.post_nms_topn, pixels=True)]
        return np.column_stack([found[kept], scores[kept]])


def anchors(base_size: int, ratios: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """(ratios * scales, 4): boxes about the centre of a square of `base_size` pixels.

    Each ratio of height to width gives a box of whole sides and about the area of the square, in each of the scales.
    """
    widths = np.floor(np.sqrt(np.float32(base_size * base_size) / ratios) + np.float32(0.5))
    heights = np.floor(widths * ratios + np.float32(0.5))
    sides = np.stack([widths, heights], axis=-1)[:, None] * scales[:, None]
    half = (sides.reshape(-1, 2) - 1) / 2
    centre = np.float32(base_size - 1) / 2
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.float32)
