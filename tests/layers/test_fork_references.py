"""Layers of forks that have few golden values (tests/golden/forks) against slow references, on random inputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.conftest import make_net
from tests.engine_choice import host

pytestmark = pytest.mark.usefixtures("on_each_engine")


def run(kind, param, bottoms, tops=1, phase="TEST", backward=()):
    """Tops, and gradients of the bottoms in `backward`: that of the first top counts up."""
    names = [f"x{index}" for index in range(len(bottoms))]
    shapes = " ".join(f"shape {{ {' '.join(f'dim: {n}' for n in bottom.shape)} }}" for bottom in bottoms)
    inputs = " ".join(f'top: "{name}"' for name in names)
    down = " ".join(f"propagate_down: {str(index in backward).lower()}" for index in range(len(bottoms)))
    net = make_net(
        f"""force_backward: {str(bool(backward)).lower()}
        layer {{ name: "in" type: "Input" {inputs} input_param {{ {shapes} }} }}
        layer {{ name: "it" type: "{kind}" {inputs.replace("top", "bottom")} {param} {down}
          {" ".join(f'top: "y{index}"' for index in range(tops))} }}""",
        phase,
    )
    for name, values in zip(names, bottoms, strict=True):
        net.blob(name).data[...] = net.blob(name).xp.asarray(values, np.float32)
    net.forward()
    if backward:
        top = net.blob("y0")
        if top.shape:
            top.diff[...] = top.xp.asarray(slopes(top.shape))
        net.backward()
    return [host(net.blob(f"y{index}").data) for index in range(tops)], [
        host(net.blob(names[index]).diff) for index in backward
    ]


def slopes(shape):
    return (np.arange(math.prod(shape)).reshape(shape) % 7 - 3).astype(np.float32)


def some_regions(random, count, images):
    """Corners in pixels of a picture twice as large as the maps of 6 x 9 cells, some of them outside or reversed."""
    low = random.uniform(-4, 16, (count, 2))
    high = low + random.uniform(-3, 14, (count, 2))
    return np.column_stack([random.integers(0, images, count), low, high]).round(1).astype(np.float32)


@pytest.mark.parametrize("seed", range(6))
def test_samples_at_the_corners_of_bins(seed):
    random = np.random.default_rng(seed)
    images, (bins_h, bins_w), pad = random.integers(1, 4), random.integers(1, 5, 2), random.choice([0, 0.25])
    maps = random.normal(0, 1, (images, 2, 6, 9)).astype(np.float32)
    regions = some_regions(random, random.integers(1, 7), images)
    top = np.zeros((len(regions), 2, bins_h + 1, bins_w + 1))
    for r, (image, x1, y1, x2, y2) in enumerate(regions.astype(float)):
        pad_w, pad_h = (x2 - x1 + 1) * pad, (y2 - y1 + 1) * pad
        left, right, upper, lower = (v / 2 - 0.5 for v in (x1 - pad_w, x2 + pad_w, y1 - pad_h, y2 + pad_h))
        if right <= left or lower <= upper:
            continue
        for i, j in itertools.product(range(bins_h + 1), range(bins_w + 1)):
            y, x = upper + i * (lower - upper) / bins_h, left + j * (right - left) / bins_w
            if not (-0.5 <= y <= 5.5 and -0.5 <= x <= 8.5):
                continue
            y, x = min(max(y, 0), 5), min(max(x, 0), 8)
            for row, column in itertools.product(range(6), range(9)):
                weight = max(0, 1 - abs(y - row)) * max(0, 1 - abs(x - column))
                top[r, :, i, j] += weight * maps[int(image), :, row, column]
    param = f"roi_pooling_param {{ pooled_h: {bins_h} pooled_w: {bins_w} spatial_scale: 0.5 pad_ratio: {pad} }}"
    (found,), _ = run("ROIAlign", param, (maps, regions))
    np.testing.assert_allclose(found, top, atol=1e-4)


@pytest.mark.parametrize(("count", "per_image"), [(7, 2), (5, 9), (1, 1), (0, 3)])
def test_the_hardest_regions_of_each_image(count, per_image):
    random = np.random.default_rng(count)
    regions, losses = np.zeros((count, 5)), random.integers(0, 4, count) / 4
    regions[:, 0] = random.integers(0, 3, count)
    labels, weights = random.integers(0, 5, count), random.normal(0, 1, (count, 8)).astype(np.float32)
    param = f"box_annotator_ohem_param {{ roi_per_img: {per_image} ignore_label: 9 }}"
    (kept, scaled), _ = run("BoxAnnotatorOHEM", param, (regions, losses, labels, weights), tops=2)
    for region in range(count):
        same = [other for other in range(count) if regions[other, 0] == regions[region, 0]]
        rank = sorted(same, key=lambda other: -losses[other]).index(region)
        hard = rank < per_image
        assert kept[region] == (labels[region] if hard else 9)
        np.testing.assert_array_equal(scaled[region], weights[region] * hard)


@pytest.mark.parametrize("kind", ["NEAREST", "BILINEAR"])
@pytest.mark.parametrize("size", [(4, 6), (8, 9), (3, 2), (10, 1), (5, 7)])
def test_deephi_resize_is_opencvs(size, kind):
    cv2 = pytest.importorskip("cv2")
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 6)).astype(np.float32)
    fields = f"new_height: {size[0]} new_width: {size[1]} resize_type: {kind}"
    (y,), _ = run("DeephiResize", f"deephi_resize_param {{ {fields} }}", [x])
    how = cv2.INTER_NEAREST if kind == "NEAREST" else cv2.INTER_LINEAR
    wanted = [[cv2.resize(plane, size[::-1], interpolation=how) for plane in image] for image in x]
    np.testing.assert_allclose(y, wanted, atol=1e-5)
