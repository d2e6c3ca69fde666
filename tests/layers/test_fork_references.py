"""Layers of forks against slow references that loop over boxes and cells, on random fields and inputs.

Golden values of the forks' own code (tests/golden/forks) cover most options one by one. Here are layers whose options
act on one another, or that have few golden values.
"""

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


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    union = area(a) + area(b) - common
    return common / union if common > 0 else 0.0


def area(box):
    return 0 if box[2] < box[0] or box[3] < box[1] else (box[2] - box[0]) * (box[3] - box[1])


def some_boxes(random, count):
    low = random.uniform(-0.1, 0.8, (count, 2))
    return np.concatenate([low, low + random.uniform(0.02, 0.5, (count, 2))], axis=1).astype(np.float32)


def code_of(box, prior, kind):
    """The code of a box relative to a prior, before its division by the variance."""
    box, prior = np.float64(box), np.float64(prior)
    size = prior[2:] - prior[:2]
    if kind == "CENTER_SIZE":
        shift = ((box[:2] + box[2:]) - (prior[:2] + prior[2:])) / 2 / size
        return np.concatenate([shift, np.log((box[2:] - box[:2]) / size)])
    return (box - prior) / (np.tile(size, 2) if kind == "CORNER_SIZE" else 1)


def box_of(code, prior, kind):
    """The reverse."""
    code, prior = np.float64(code), np.float64(prior)
    size = prior[2:] - prior[:2]
    if kind == "CENTER_SIZE":
        centre, half = (prior[:2] + prior[2:]) / 2 + code[:2] * size, np.exp(code[2:]) * size / 2
        return np.concatenate([centre - half, centre + half])
    return prior + code * (np.tile(size, 2) if kind == "CORNER_SIZE" else 1)


# --- SSD --------------------------------------------------------------------------------------------------------------


LOSSES = list(
    itertools.product(
        ["SMOOTH_L1", "L2"],
        ["SOFTMAX", "LOGISTIC"],
        ["BIPARTITE", "PER_PREDICTION"],
        ["NONE", "MAX_NEGATIVE", "HARD_EXAMPLE"],
    )
)


@pytest.mark.parametrize(("seed", "kinds"), list(enumerate(LOSSES * 2)))
def test_multibox_loss(seed, kinds):
    box_loss, score_loss, match_type, mining = kinds
    random = np.random.default_rng(seed)
    images, priors, classes, objects = random.integers(1, 4), random.integers(3, 14), 4, random.integers(0, 6)
    share = mining != "NONE" or random.random() < 0.5
    agnostic = mining == "NONE" and share and seed % 4 == 0
    in_target, by_prior = random.random() < 0.3, random.random() < 0.7
    difficult_too, crossing, inside = random.random() < 0.6, random.random() < 0.7, random.random() < 0.3
    kind = random.choice(["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
    mode = random.choice(["VALID", "FULL", "BATCH_SIZE", "NONE"])
    ratio, near, least, sample, weight = 1.7, random.choice([0.2, 0.5]), random.choice([0.3, 0.6]), 3, 0.7
    boxes = some_boxes(random, priors)
    variances = random.uniform(0.1, 0.3, (priors, 4)).astype(np.float32)
    codes = random.normal(0, 0.3, (images, priors, 1 if share else classes, 4)).astype(np.float32)
    scores = random.normal(0, 1, (images, priors, classes)).astype(np.float32)
    truth = np.column_stack(
        [
            random.integers(0, images, objects),
            random.integers(1, classes, objects),
            np.zeros(objects),
            np.clip(boxes[random.integers(0, priors, objects)] + random.normal(0, 0.05, (objects, 4)), 0, 1),
            random.random(objects) < 0.3,
        ]
    ).astype(np.float32)
    truth = truth[(truth[:, 5] > truth[:, 3]) & (truth[:, 6] > truth[:, 4])]
    truth = np.concatenate([truth, np.full((1, 8), -1, np.float32)])
    param = f"""multibox_loss_param {{ num_classes: {classes} share_location: {str(share).lower()} code_type: {kind}
      loc_loss_type: {box_loss} conf_loss_type: {score_loss} match_type: {match_type} mining_type: {mining}
      encode_variance_in_target: {str(in_target).lower()} use_prior_for_matching: {str(by_prior).lower()}
      use_difficult_gt: {str(difficult_too).lower()} bp_inside: {str(inside).lower()} neg_pos_ratio: {ratio}
      ignore_cross_boundary_bbox: {str(not crossing).lower()} neg_overlap: {near} overlap_threshold: {least}
      map_object_to_agnostic: {str(agnostic).lower()} sample_size: {sample} loc_weight: {weight} }}
      loss_param {{ normalization: {mode} }}"""
    total, count, d_codes, d_scores = 0.0, 0, np.zeros(codes.shape), np.zeros(scores.shape)
    for image in range(images):
        there = [row for row in truth if row[0] == image and (difficult_too or not row[7])]

        def predicted(prior, label=0, image=image):
            code = codes[image, prior, label].astype(np.float64)
            return box_of(code if in_target else code * variances[prior], boxes[prior], kind)

        groups = [(0, there)]  # index of the codes, and objects that are matched together
        if not share and not by_prior:
            groups = [(label, [row for row in there if row[1] == label]) for label in range(1, classes)]
        pairs, overlaps, unusable = [], np.zeros(priors), set()
        for label, rows in groups:
            at = [boxes[prior] if by_prior else predicted(prior, label) for prior in range(priors)]
            usable = [prior for prior in range(priors) if crossing or all((at[prior] >= 0) & (at[prior] <= 1))]
            table = {
                (prior, index): value
                for prior in usable
                for index, row in enumerate(rows)
                if (value := iou(at[prior], row[3:7])) > 1e-6
            }
            for (prior, _), value in table.items():
                overlaps[prior] = max(overlaps[prior], value)
            if rows:
                unusable |= set(range(priors)) - set(usable)
            free, left, matched = set(usable), set(range(len(rows))), {}
            while candidates := [(v, p, g) for (p, g), v in table.items() if p in free and g in left]:
                _, prior, index = max(candidates, key=lambda one: (one[0], -one[1], -one[2]))
                matched[prior] = index
                free.remove(prior)
                left.remove(index)
            if match_type == "PER_PREDICTION":
                for prior in free:
                    values = [table.get((prior, index), 0) for index in range(len(rows))]
                    if values and max(values) >= least:
                        matched[prior] = int(np.argmax(values))
            for prior, index in matched.items():
                code_index = int(rows[index][1]) if not share else 0
                pairs.append((prior, code_index, rows[index]))
        of_prior = {prior: row for prior, _, row in pairs}

        def target_of(prior, of_prior=of_prior):
            row = of_prior.get(prior)
            return 0 if row is None else 1 if agnostic else int(row[1])

        def loss_of_scores(prior, image=image, pairs=pairs):
            x = scores[image, prior].astype(np.float64)
            target = np.zeros(classes)
            if score_loss == "SOFTMAX" or mining != "NONE":
                target[target_of(prior)] = 1
            else:
                for other, _, row in pairs:
                    if other == prior:
                        target[1 if agnostic else int(row[1])] = 1
            if score_loss == "SOFTMAX":
                p = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
                return -np.log(p[target.argmax()]), p - target
            s = 1 / (1 + np.exp(-x))
            return -(target * np.log(s) + (1 - target) * np.log(1 - s)).sum(), s - target

        def loss_of_box(prior, label, row, image=image):
            difference = codes[image, prior, label] - code_of(row[3:7], boxes[prior], kind) / (
                1 if in_target else variances[prior]
            )
            if inside:
                at = boxes[prior] if by_prior else predicted(prior, label)
                difference = difference * ((at >= 0) & (at <= 1))
            if in_target:
                difference = difference / variances[prior]
            if box_loss == "L2":
                return (difference**2).sum() / 2, difference
            small = abs(difference) < 1
            value = np.where(small, difference**2 / 2, abs(difference) - 0.5).sum()
            return value, np.where(small, difference, np.sign(difference))

        chosen = set(range(priors))
        if mining == "MAX_NEGATIVE":
            negatives = [
                prior
                for prior in range(priors)
                if prior not in of_prior and prior not in unusable and overlaps[prior] < near
            ]
            negatives.sort(key=lambda prior: -loss_of_scores(prior)[0])
            chosen = set(of_prior) | set(negatives[: int(len(of_prior) * ratio)] if there else [])
        elif mining == "HARD_EXAMPLE":
            of_boxes = {prior: loss_of_box(prior, 0, row)[0] for prior, _, row in pairs}
            ranked = sorted(range(priors), key=lambda p: -(loss_of_scores(p)[0] + of_boxes.get(p, 0)))
            chosen = set(ranked[:sample]) - unusable if there else set()
        for prior, label, row in pairs:
            if prior in chosen:
                value, slope = loss_of_box(prior, label, row)
                total, count = total + weight * value, count + 1
                d_codes[image, prior, label] = weight * slope
        for prior in chosen:
            value, slope = loss_of_scores(prior)
            total += value
            d_scores[image, prior] = slope
    divisor = {"VALID": max(count, 1), "FULL": images * priors, "BATCH_SIZE": images, "NONE": 1}[mode]
    bottoms = (
        codes.reshape(images, -1),
        scores.reshape(images, -1),
        np.stack([boxes, variances]).reshape(1, 2, -1),
        truth.reshape(1, 1, -1, 8),
    )
    (top,), (first, second) = run("MultiBoxLoss", param, bottoms, phase="TRAIN", backward=(0, 1))
    np.testing.assert_allclose(top, total / divisor, rtol=1e-4)
    np.testing.assert_allclose(first, d_codes.reshape(first.shape) / divisor, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(second, d_scores.reshape(second.shape) / divisor, rtol=1e-3, atol=1e-5)


# --- regions ----------------------------------------------------------------------------------------------------------


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
