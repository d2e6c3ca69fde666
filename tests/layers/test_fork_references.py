"""Layers of forks against slow references that loop over boxes and cells, on random fields and inputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.conftest import make_net
from tests.engine_choice import host

pytestmark = pytest.mark.usefixtures("on_each_engine")


def run(kind, param, bottoms, tops=1, phase="TEST", backward=(), passes=0):
    """Tops after so many passes, and gradients of the bottoms in `backward`: that of the first top counts up."""
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
    if passes:
        net.layers[-1].passes = passes
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


def suppressed(found, threshold, eta=1.0):
    """The pairs of score and box that are left, best first."""
    kept = []
    for pair in sorted(found, key=lambda pair: -pair[0]):
        if all(iou(pair[1], other[1]) <= threshold for other in kept):
            kept.append(pair)
            threshold *= eta if threshold > 0.5 else 1
    return kept


@pytest.mark.parametrize("seed", range(12))
def test_detection_output(seed):
    random = np.random.default_rng(seed)
    images, priors, classes = random.integers(1, 4), random.integers(0 if seed == 5 else 1, 12), random.integers(1, 4)
    share, in_target = random.random() < 0.5, random.random() < 0.5
    kind = random.choice(["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
    background, keep, top = random.integers(-1 if not share else 0, classes), random.choice([-1, 0, 2, 5]), 6
    least, threshold = random.choice([-1, 0, 0.4]), random.choice([0, 0.3, 0.9])
    kinds = 1 if share else classes
    codes = random.normal(0, 0.5, (images, priors, kinds, 4)).astype(np.float32)
    scores = random.permutation(images * priors * classes).reshape(images, priors, classes) / 40 - 0.1
    scores = scores.astype(np.float32)
    if seed % 3 == 0:
        scores[0, ::2] = np.nan
    boxes, variances = some_boxes(random, priors), random.uniform(0.1, 0.3, (priors, 4)).astype(np.float32)
    param = f"""detection_output_param {{ num_classes: {classes} share_location: {str(share).lower()}
      background_label_id: {background} variance_encoded_in_target: {str(in_target).lower()} code_type: {kind}
      keep_top_k: {keep} confidence_threshold: {least}
      nms_param {{ nms_threshold: {threshold} top_k: {top} eta: 0.9 }} }}"""
    bottoms = codes.reshape(images, -1), scores.reshape(images, -1), np.stack([boxes, variances]).reshape(1, 2, -1)
    rows = []
    for image in range(images):
        of_image = []
        for label in range(classes):
            if label == background:
                continue
            found = [
                (score, box_of(code if in_target else code * variance, prior, kind))
                for score, code, prior, variance in zip(
                    scores[image, :, label],
                    codes[image, :, 0 if share else label],
                    boxes,
                    variances,
                    strict=True,
                )
                if score > np.float32(least)
            ]
            found = sorted(found, key=lambda pair: -pair[0])[:top]
            of_image += [(image, label, score, *box) for score, box in suppressed(found, threshold, 0.9)]
        if keep >= 0:
            best = sorted(of_image, key=lambda row: -row[2])[:keep]
            of_image = [row for row in of_image if row in best]
        rows += of_image
    rows = rows or [(image, *[-1] * 6) for image in range(images)]
    (found,), _ = run("DetectionOutput", param, bottoms)
    assert found.shape == (1, 1, len(rows), 7)
    np.testing.assert_allclose(found[0, 0], rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_detection_evaluate(seed):
    random = np.random.default_rng(seed)
    count, objects, labels = random.integers(1, 12), random.integers(1, 6), (0, 2)
    skips_difficult, threshold = seed % 2, random.choice([0.2, 0.5])
    truth = np.column_stack(
        [
            random.integers(0, 2, objects),
            random.choice(labels, objects),
            np.zeros(objects),
            some_boxes(random, objects),
            random.integers(0, 2, objects),
        ]
    )
    if seed == 3:
        truth[-1, :] = -1
    near = truth[random.integers(0, objects, count), 3:7] + random.normal(0, 0.03, (count, 4))
    order = np.sort(random.integers(0, 2, count))
    found = np.column_stack([order, random.choice(labels, count), random.permutation(count) / 20, near])
    if seed == 4:
        found[:, 1:] = -1
    param = f"""detection_evaluate_param {{ num_classes: 3 background_label_id: 1 overlap_threshold: {threshold}
      evaluate_difficult_gt: {str(not skips_difficult).lower()} }}"""
    read = list(itertools.takewhile(lambda row: row[0] != -1, truth.astype(np.float32)))
    rows = [
        (-1, label, sum(row[1] == label and not (skips_difficult and row[7]) for row in read), -1, -1)
        for label in labels
    ]
    for image, label in itertools.product(range(2), labels):
        of_class = [row for row in found.astype(np.float32) if row[0] == image and row[1] == label]
        there = [row for row in read if row[0] == image and row[1] == label]
        taken = set()
        for row in sorted(of_class, key=lambda row: -row[2]) if there else of_class:
            overlaps = [iou(row[3:], other[3:7]) for other in there]
            best = int(np.argmax(overlaps)) if there else -1
            true, false = 0, 1
            if there and overlaps[best] >= threshold:
                if skips_difficult and there[best][7]:
                    true, false = 0, 0
                elif best not in taken:
                    true, false = 1, 0
                    taken.add(best)
            rows.append((image, label, row[2], true, false))
    (top,), _ = run("DetectionEvaluate", param, (found.reshape(1, 1, -1, 7), truth.reshape(1, 1, -1, 8)))
    np.testing.assert_array_equal(top[0, 0], np.array(rows, np.float32))


@pytest.mark.parametrize("seed", range(12))
def test_prior_box(seed):
    random = np.random.default_rng(seed)
    height, width, count = random.integers(1, 5), random.integers(1, 5), random.integers(1, 4)
    smallest = np.sort(random.uniform(3, 30, count)).round(1)
    largest = (smallest + random.uniform(2, 20, count)).round(1) if seed % 2 else []
    ratios, flip, clip = random.choice([0.5, 1, 2, 3], random.integers(0, 4)), seed % 3 > 0, seed % 4 == 0
    offset = 0.4
    image_h, image_w = 37, 52
    more, step_h, step_w = "", image_h / height, image_w / width
    if seed % 5 == 1:
        more, step_h, step_w = "step: 7.5", 7.5, 7.5
    if seed % 5 == 2:
        more, step_h, step_w = "step_h: 6 step_w: 9", 6, 9
    if seed % 5 == 3:
        more, image_h, image_w = "img_h: 40 img_w: 60", 40, 60
        step_h, step_w = 40 / height, 60 / width
    variances = [(), (0.3,), (0.1, 0.1, 0.2, 0.2)][seed % 3]
    fields = [
        *(f"min_size: {size}" for size in smallest),
        *(f"max_size: {size}" for size in largest),
        *(f"aspect_ratio: {ratio}" for ratio in ratios),
        *(f"variance: {value}" for value in variances),
        f"flip: {str(flip).lower()} clip: {str(clip).lower()} offset: {offset} {more}",
    ]
    shapes = [1.0]
    for ratio in ratios:
        if all(abs(ratio - other) > 1e-6 for other in shapes):
            shapes += [ratio, 1 / ratio] if flip else [ratio]
    corners = []
    for row, column in itertools.product(range(height), range(width)):
        x, y = (column + offset) * step_w, (row + offset) * step_h
        for index, size in enumerate(smallest):
            size = int(size)
            sides = [(size, size)]
            if len(largest):
                sides.append((math.sqrt(size * int(largest[index])),) * 2)
            sides += [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in shapes[1:]]
            for w, h in sides:
                corners += [(x - w / 2) / image_w, (y - h / 2) / image_h, (x + w / 2) / image_w, (y + h / 2) / image_h]
    if clip:
        corners = [min(max(value, 0), 1) for value in corners]
    values = (variances or (0.1,)) * (1 if len(variances) == 4 else 4)
    bottoms = np.zeros((2, 3, height, width)), np.zeros((2, 3, 37, 52))
    (top,), _ = run("PriorBox", f"prior_box_param {{ {' '.join(fields)} }}", bottoms)
    np.testing.assert_allclose(top, [[corners, values * (len(corners) // 4)]], atol=2e-6)


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


def nearest(value):
    """Rounded half away from zero."""
    return math.copysign(math.floor(abs(value) + 0.5), value)


def clipped(value, size):
    return int(min(max(value, 0), size))


@pytest.mark.parametrize("seed", range(8))
def test_roi_pooling(seed):
    random = np.random.default_rng(seed)
    images, (bins_h, bins_w), pad = random.integers(1, 4), random.integers(1, 5, 2), random.choice([0, 0.25])
    maps = random.permutation(images * 2 * 54).reshape(images, 2, 6, 9).astype(np.float32) - 50
    regions = some_regions(random, random.integers(0, 7), images)
    top, gradient = np.zeros((len(regions), 2, bins_h, bins_w)), np.zeros(maps.shape)
    dy = slopes(top.shape)
    for r, (image, *corners) in enumerate(regions):
        x1, y1, x2, y2 = np.float32(corners)
        pad_w, pad_h = (x2 - x1 + 1) * np.float32(pad), (y2 - y1 + 1) * np.float32(pad)
        left, right, upper, lower = (nearest(v / 2) for v in (x1 - pad_w, x2 + pad_w, y1 - pad_h, y2 + pad_h))
        bin_w, bin_h = max(right - left + 1, 1) / bins_w, max(lower - upper + 1, 1) / bins_h
        for c, i, j in itertools.product(range(2), range(bins_h), range(bins_w)):
            rows = range(
                clipped(math.floor(i * bin_h) + upper, 6), clipped(math.ceil((i + 1) * bin_h - 1e-6) + upper, 6)
            )
            columns = range(
                clipped(math.floor(j * bin_w) + left, 9), clipped(math.ceil((j + 1) * bin_w - 1e-6) + left, 9)
            )
            cells = [(maps[int(image), c, y, x], y, x) for y in rows for x in columns]
            if cells:
                top[r, c, i, j], y, x = max(cells, key=lambda cell: cell[0])
                gradient[int(image), c, y, x] += dy[r, c, i, j]
    param = f"roi_pooling_param {{ pooled_h: {bins_h} pooled_w: {bins_w} spatial_scale: 0.5 pad_ratio: {pad} }}"
    (found,), (down,) = run("ROIPooling", param, (maps, regions), backward=(0,))
    np.testing.assert_array_equal(found, top)
    np.testing.assert_allclose(down, gradient, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_psroi_pooling(seed):
    random = np.random.default_rng(seed)
    images, group, outputs = random.integers(1, 4), int(random.integers(1, 4)), 2
    maps = random.normal(0, 1, (images, outputs * group**2, 6, 9)).astype(np.float32)
    regions = some_regions(random, random.integers(0, 7), images)
    top, gradient = np.zeros((len(regions), outputs, group, group)), np.zeros(maps.shape)
    dy = slopes(top.shape)
    for r, (image, *corners) in enumerate(regions):
        x1, y1, x2, y2 = (nearest(corner) for corner in corners)
        left, right, upper, lower = x1 / 2, (x2 + 1) / 2, y1 / 2, (y2 + 1) / 2
        bin_w, bin_h = (np.float32(max(size, 0.1)) / np.float32(group) for size in (right - left, lower - upper))
        for d, i, j in itertools.product(range(outputs), range(group), range(group)):
            channel = (d * group + i) * group + j
            rows, columns = (
                slice(
                    clipped(math.floor(np.float32(k) * size + np.float32(start)), most),
                    clipped(math.ceil(np.float32(k + 1) * size + np.float32(start)), most),
                )
                for k, size, start, most in ((i, bin_h, upper, 6), (j, bin_w, left, 9))
            )
            cells = maps[int(image), channel, rows, columns]
            if cells.size:
                top[r, d, i, j] = cells.mean(dtype=np.float64)
                gradient[int(image), channel, rows, columns] += dy[r, d, i, j] / cells.size
    param = f"psroi_pooling_param {{ output_dim: {outputs} group_size: {group} spatial_scale: 0.5 }}"
    (found,), (down,) = run("PSROIPooling", param, (maps, regions), backward=(0,))
    np.testing.assert_allclose(found, top, atol=1e-5)
    np.testing.assert_allclose(down, gradient, atol=1e-5)


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


# --- resizing, faces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ("height: 4 width: 11", (4, 11)),
        ("zoom_factor: 3", (13, 19)),
        ("shrink_factor: 3", (2, 3)),
        ("shrink_factor: 2 zoom_factor: 3", (7, 10)),
        ("height: 4 width: 11 zoom_factor: 3", (13, 19)),
        ("height: 4 width: 11 shrink_factor: 3", (2, 3)),
        ("height: 4 width: 11 shrink_factor: 2 zoom_factor: 3", (4, 11)),
        ("height: 1 width: 1", (1, 1)),
        ("height: 5 width: 7", (5, 7)),
        ("pad_beg: -1 pad_end: -2 height: 4 width: 9", (4, 9)),
        ("pad_end: -1 zoom_factor: 2", (7, 11)),
    ],
)
def test_interp(fields, size):
    random = np.random.default_rng(1)
    x = random.normal(0, 1, (2, 3, 5, 7)).astype(np.float32)
    beg, end = (1, 2) if "pad_beg" in fields else (0, 1) if "pad_end" in fields else (0, 0)
    part = x[:, :, beg : 5 - end, beg : 7 - end]
    top, gradient = np.zeros((2, 3, *size)), np.zeros(x.shape)
    dy = slopes(top.shape)
    for i, j in itertools.product(*map(range, size)):
        ends = []
        for k, n, m in ((i, part.shape[2], size[0]), (j, part.shape[3], size[1])):
            at = k * (n - 1) / (m - 1) if m > 1 else 0.0
            low = min(int(at + 1e-9), n - 1)
            ends.append([(low, 1 - (at - low)), (min(low + 1, n - 1), at - low)])
        for (row, a), (column, b) in itertools.product(*ends):
            top[:, :, i, j] += a * b * part[:, :, row, column]
            gradient[:, :, row + beg, column + beg] += a * b * dy[:, :, i, j]
    (found,), (down,) = run("Interp", f"interp_param {{ {fields} }}", (x,), backward=(0,))
    np.testing.assert_allclose(found, top, atol=1e-5)
    np.testing.assert_allclose(down, gradient, atol=2e-5)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ("", (6, 8)),
        ("scale: 3", (9, 12)),
        ("scale_h: 2 scale_w: 3", (6, 12)),
        ("pad_out_h: true", (5, 8)),
        ("scale: 2 pad_out_h: true pad_out_w: true", (5, 7)),
        ("upsample_h: 7 upsample_w: 9", (7, 9)),
    ],
)
def test_upsampling_by_a_mask(fields, size):
    random = np.random.default_rng(2)
    x = random.normal(0, 1, (2, 3, 3, 4)).astype(np.float32)
    mask = random.integers(0, math.prod(size), x.shape)
    top, gradient = np.zeros((2, 3, math.prod(size))), np.zeros(x.shape)
    dy = slopes((2, 3, *size)).reshape(2, 3, -1)
    for index in np.ndindex(x.shape):
        top[(*index[:2], mask[index])] = x[index]
        gradient[index] = dy[(*index[:2], mask[index])]
    (found,), (down,) = run("Upsample", f"upsample_param {{ {fields} }}", (x, mask), backward=(0,))
    np.testing.assert_allclose(found, top.reshape(2, 3, *size))
    np.testing.assert_allclose(down, gradient)


@pytest.mark.parametrize("kind", ["SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE"])
def test_angular_margins(kind):
    m = ["SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE"].index(kind) + 1
    random = np.random.default_rng(m)
    x, labels = random.normal(0, 1, (40, 3)).astype(np.float32), random.integers(0, 5, 40)
    param = f"""margin_inner_product_param {{ num_output: 5 type: {kind} base: 2 gamma: 0.5 power: 1 iteration: 3
      lambda_min: 0.1 weight_filler {{ type: "constant" value: 1 }} }}"""
    (scores, mix), _ = run("MarginInnerProduct", param, (x, labels), tops=2)
    share = max(2 / (1 + 0.5 * 4), 0.1)
    assert mix == pytest.approx(share)
    norm = np.linalg.norm(x.astype(float), axis=1)
    cosine = x.astype(float).sum(axis=1) / math.sqrt(3) / norm  # all weights are equal
    angle = np.arccos(cosine)
    turns = np.floor(m * angle / math.pi)
    margin = (-1) ** turns * np.cos(m * angle) - 2 * turns
    expected = np.repeat((norm * cosine)[:, None], 5, axis=1)
    expected[np.arange(40), labels] = norm * (margin + share * cosine) / (1 + share)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


# --- YOLO -------------------------------------------------------------------------------------------------------------


def part_in_image(x, y, w, h):
    """The corners of a box of centre and sides, cut to the unit square."""
    return [min(max(value, 0), 1) for value in (x - w / 2, y - h / 2, x + w / 2, y + h / 2)]


@pytest.mark.parametrize("seed", range(10))
def test_region_loss(seed):
    random = np.random.default_rng(seed)
    images, side, classes, anchors = random.integers(1, 4), int(random.integers(1, 5)), 3, 2
    biases = random.uniform(0.4, 3, (anchors, 2)).round(2)
    by_bias, passes = seed % 3 > 0, seed % 2 * 12800
    x = random.normal(0, 1, (images, anchors, 5 + classes, side, side)).astype(np.float32)
    truth = np.zeros((images, 6, 5), np.float32)
    for image in range(images):
        for row in range(random.integers(0, 6)):
            truth[image, row] = (
                random.integers(0, classes),
                *random.uniform(0.05, 0.95, 2),
                *random.uniform(0.1, 0.9, 2),
            )
    param = f"""region_loss_param {{ side: {side} num_class: {classes} num: {anchors} bias_match: {int(by_bias)}
      thresh: 0.3 object_scale: 5 noobject_scale: 0.7 class_scale: 1.5 coord_scale: 2
      {" ".join(f"biases: {value}" for value in biases.reshape(-1))} }}"""
    gradient = np.zeros(x.shape)
    for image in range(images):
        cells = x[image].astype(np.float64)
        cells[:, [0, 1, 4]] = 1 / (1 + np.exp(-cells[:, [0, 1, 4]]))
        cells[:, 5:] = np.exp(cells[:, 5:]) / np.exp(cells[:, 5:]).sum(axis=1, keepdims=True)
        objects = list(itertools.takewhile(lambda row: row[1], truth[image].astype(float)))

        def predicted(n, j, i, cells=cells):
            tx, ty, tw, th = cells[n, :4, j, i]
            return (i + tx) / side, (j + ty) / side, np.exp(tw) * biases[n, 0] / side, np.exp(th) * biases[n, 1] / side

        def pull(n, j, i, targets, scale, cells=cells, image=image):
            for k, target in enumerate(targets):
                value = cells[n, k, j, i]
                gradient[image, n, k, j, i] = scale * (value - target) * (value * (1 - value) if k < 2 else 1)

        for n, j, i in np.ndindex(anchors, side, side):
            best = max((iou(part_in_image(*predicted(n, j, i)), part_in_image(*row[1:])) for row in objects), default=0)
            o = cells[n, 4, j, i]
            gradient[image, n, 4, j, i] = 0 if best > 0.3 else 0.7 * o * o * (1 - o)
            if not passes:
                pull(n, j, i, (0.5, 0.5, 0, 0), 0.01)
        for label, cx, cy, w, h in objects:
            i, j = int(cx * side), int(cy * side)
            shapes = [tuple(biases[n] / side) if by_bias else predicted(n, j, i)[2:] for n in range(anchors)]
            n = int(np.argmax([iou(part_in_image(0, 0, *shape), part_in_image(0, 0, w, h)) for shape in shapes]))
            codes = cx * side - i, cy * side - j, np.log(w * side / biases[n, 0]), np.log(h * side / biases[n, 1])
            pull(n, j, i, codes, 2)
            o = cells[n, 4, j, i]
            gradient[image, n, 4, j, i] = 5 * (o - 1) * o * (1 - o)
            gradient[image, n, 5:, j, i] = 1.5 * (cells[n, 5:, j, i] - np.eye(classes)[int(label)])
    bottoms = x.reshape(images, -1, side, side), truth.reshape(images, -1)
    (top,), (down,) = run("RegionLoss", param, bottoms, phase="TRAIN", backward=(0,), passes=passes)
    np.testing.assert_allclose(top, (gradient**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(down, gradient.reshape(down.shape) / images, rtol=1e-3, atol=1e-5)
