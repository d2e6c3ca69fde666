"""Boxes as YOLO has them: NumPy arrays (..., 4) of centre x, centre y, width and height, as fractions of the image."""

from __future__ import annotations

import math

import numpy as np

from fcaffe.data.boxes import intersections
from fcaffe.proto import caffe_pb2 as pb

IOU, GIOU, MSE, DIOU, CIOU = (getattr(pb.Yolov3Parameter, name) for name in ("IOU", "GIOU", "MSE", "DIOU", "CIOU"))


def corners(boxes: np.ndarray) -> np.ndarray:
    """The same boxes as (..., 4) of xmin, ymin, xmax, ymax."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def overlap(a: np.ndarray, b: np.ndarray, kind: int = IOU) -> np.ndarray:
    """How much the boxes a and b, whose shapes broadcast, overlap: intersection over union, 0 for boxes without area.

    GIOU subtracts the part of the enclosing box outside the union. DIOU and CIOU subtract a measure of the distance of
    the centres, CIOU also one of the difference in shape. DIOU has the power 0.6 of MobileNet-YOLO.
    """
    common = intersections(corners(a), corners(b))
    union = a[..., 2:].prod(axis=-1) + b[..., 2:].prod(axis=-1) - common
    iou = _quotient(common, union)
    if kind in (IOU, MSE):
        return iou
    (a_low, a_high), (b_low, b_high) = (np.split(corners(boxes), 2, axis=-1) for boxes in (a, b))
    sides = np.maximum(a_high, b_high) - np.minimum(a_low, b_low)  # of the box around both
    if kind == GIOU:
        enclosing = sides.prod(axis=-1)
        return iou - _quotient(enclosing - union, enclosing)
    distance = _quotient(((a - b)[..., :2] ** 2).sum(axis=-1), (sides**2).sum(axis=-1))
    if kind == DIOU:
        return iou - distance**0.6
    shape, weight = _shape_term(a, b, iou)
    return iou - (distance + weight * shape)


def clipped_overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of the parts of the boxes that lie in the image."""
    return overlap(_clipped(a), _clipped(b))


def overlap_gradient(a: np.ndarray, b: np.ndarray, kind: int) -> np.ndarray:
    """What MobileNet-YOLO takes for the derivative of `overlap` by a; both (K, 4).

    As in Darknet, that of the sides is twice the derivative, the intersection of boxes that are disjoint on both axes
    counts as positive, and DIOU has the power 1.
    """
    (a_low, a_high), (b_low, b_high) = (np.split(corners(boxes), 2, axis=-1) for boxes in (a, b))
    common = np.minimum(a_high, b_high) - np.maximum(a_low, b_low)
    enclosing = np.maximum(a_high, b_high) - np.minimum(a_low, b_low)
    disjoint = (common <= 0).any(axis=-1, keepdims=True)
    i, c = (sides.prod(axis=-1, keepdims=True) for sides in (common, enclosing))
    u = (a_high - a_low).prod(axis=-1, keepdims=True) + (b_high - b_low).prod(axis=-1, keepdims=True) - i
    sides = []  # derivatives by the lower, then by the upper corner
    for sign, shrinks, grows in ((-1, a_low > b_low, a_low < b_low), (1, a_high < b_high, a_high > b_high)):
        di, dc = (sign * where * other[:, ::-1] for where, other in ((shrinks, common), (grows, enclosing)))
        du = sign * (a_high - a_low)[:, ::-1] - di
        derivative = np.where(u > 0, _quotient(u * di - i * du, u * u), 0)
        if kind == GIOU:
            derivative = np.where(disjoint, 0, derivative) + _quotient(c * du - u * dc, c * c)
        sides.append(derivative)
    gradient = np.concatenate([sides[0] + sides[1], sides[1] - sides[0]], axis=-1)
    if kind in (DIOU, CIOU):
        below, above = a_low < b_low, a_high > b_high
        diagonal = (enclosing**2).sum(axis=-1, keepdims=True)
        distance = ((a - b)[:, :2] ** 2).sum(axis=-1, keepdims=True)
        growth = enclosing * distance * 2
        centre = 2 * (b - a)[:, :2] * diagonal - growth * (above.astype(a.dtype) - below)
        side = growth * (above.astype(a.dtype) + below) / 2
        gradient = np.where(disjoint, 0, gradient) + _quotient(
            np.concatenate([centre, side], axis=-1), diagonal * diagonal
        )
    if kind == CIOU:
        angle = np.arctan(b[:, 2] / b[:, 3]) - np.arctan(a[:, 2] / a[:, 3])
        _, weight = _shape_term(a, b, _quotient(i, u)[:, 0])
        gradient[:, 2:] += (8 / math.pi**2 * weight * angle)[:, None] * a[:, :1:-1] * [1, -1]
    return gradient


def _clipped(boxes: np.ndarray) -> np.ndarray:
    low, high = np.split(np.clip(corners(boxes), 0, 1), 2, axis=-1)
    return np.concatenate([(low + high) / 2, high - low], axis=-1)


def _shape_term(a: np.ndarray, b: np.ndarray, iou: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """CIOU's measure of the difference in shape, and its weight."""
    angles = (np.arctan(boxes[..., 2] / boxes[..., 3]) for boxes in (b, a))
    shape = 4 / math.pi**2 * (next(angles) - next(angles)) ** 2
    return shape, shape / (1 - iou + shape + 1e-6)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, 0 where b is 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
