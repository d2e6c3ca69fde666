"""Anchors, codes and overlaps of boxes in pixels, whose last pixel belongs to the box."""

import ast

import numpy as np


def parameters(text):
    """The values of a param_str such as "'feat_stride': 8"."""
    return ast.literal_eval("{" + text + "}")


def shifted_anchors(height, width, stride, sizes):
    """(height * width * anchors, 4), square anchors of these sizes about the centre of each cell."""
    half = np.array(sizes)[:, None] / 2
    anchors = np.concatenate([-half, -half, half - 1, half - 1], axis=1) + stride / 2
    x, y = np.meshgrid(np.arange(width) * stride, np.arange(height) * stride)
    shifts = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
    return (shifts + anchors).reshape(-1, 4)


def sides_and_centres(boxes):
    sides = boxes[:, 2:] - boxes[:, :2] + 1
    return sides, boxes[:, :2] + sides / 2


def encoded(boxes, targets):
    """What moves the boxes to the targets."""
    (sides, centres), (goal_sides, goals) = sides_and_centres(boxes), sides_and_centres(targets)
    return np.concatenate([(goals - centres) / sides, np.log(goal_sides / sides)], axis=1)


def decoded(boxes, codes, height, width):
    """The boxes that codes make of boxes, clipped to the image."""
    sides, centres = sides_and_centres(boxes)
    centres, sides = centres + codes[:, :2] * sides, np.exp(np.minimum(codes[:, 2:], 4)) * sides
    found = np.concatenate([centres - sides / 2, centres + sides / 2], axis=1)
    return np.clip(found, 0, np.array([width, height, width, height]) - 1)


def overlaps(a, b):
    """(A, B): intersection over union."""
    sides = np.minimum(a[:, None, 2:], b[:, 2:]) - np.maximum(a[:, None, :2], b[:, :2]) + 1
    common = np.maximum(sides, 0).prod(axis=2)
    area_a, area_b = (sides_and_centres(boxes)[0].prod(axis=1) for boxes in (a, b))
    return common / (area_a[:, None] + area_b - common)


def without_overlap(boxes, threshold):
    """The indices that non-maximum suppression keeps of boxes, best first."""
    left, kept = np.arange(len(boxes)), []
    while len(left):
        kept.append(left[0])
        left = left[1:][overlaps(boxes[left[:1]], boxes[left[1:]])[0] <= threshold]
    return kept
