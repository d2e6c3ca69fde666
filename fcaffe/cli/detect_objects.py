"""`fcaffe detect-objects`: finds objects in pictures by a detection net, and draws their boxes."""

from __future__ import annotations

import colorsys
import contextlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import numpy as np

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags, first_gpu
from fcaffe.cli.flags import MEAN, MODEL, SCALE, WEIGHTS, command
from fcaffe.cli.table import say
from fcaffe.data.annotated import read_label_map
from fcaffe.data.boxes import ImageSize, falling, in_pixels
from fcaffe.data.images import Color, decode_image, encode_image, opencv, read_file, resize_image
from fcaffe.data.transformer import Transformer
from fcaffe.errors import DataError, UsageError
from fcaffe.input_files import reading, require_inputs
from fcaffe.net import Blob, Net
from fcaffe.output_files import PICTURE, check_output, replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import load, new_net, read_net_for

ROW = 7  # of DetectionOutput: image, label, score, box
GOLDEN_RATIO = 0.618


@command(
    example="detect-objects --model deploy.prototxt --weights ssd.caffemodel --labelmap labelmap_voc.prototxt "
    "--out drawn street.jpg",
    help="Find objects in the pictures IMAGE by the detection net --model FILE, whose output is that of a "
    "DetectionOutput or Yolov3DetectionOutput layer. Prints a line for each: the picture, the name of the class, the "
    "score, and xmin, ymin, xmax and ymax in pixels.",
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@click.option(*MODEL, "model", default="", metavar="FILE", help="Prototxt of the net.")
@click.option(*WEIGHTS, "weights", default="", metavar="FILE", help="The net's weights.")
@click.option("--gpu", default="", metavar="ID", help="GPU to compute on (the CPU).")
@click.option("--labelmap", default="", metavar="FILE", help="Names of the classes: a label map of SSD (prototxt).")
@click.option("--threshold", type=float, default=0.5, metavar="X", help="Lowest score of an object (0.5).")
@click.option("--out", default="", metavar="FOLDER", help="Write copies of the pictures with the boxes drawn here.")
@click.option(
    *MEAN,
    "mean",
    default="104,117,123",
    metavar="X,...|FILE",
    help="Subtract these values of the channels blue, green and red, or a mean image (104,117,123: VGG's; '': none).",
)
@click.option(*SCALE, "scale", default=1.0, metavar="X", help="Multiply by this after the mean is subtracted (1).")
@engine_flags
def detect_objects(
    engines: EngineFlags,
    images: tuple[str, ...],
    model: str,
    weights: str,
    gpu: str,
    labelmap: str,
    threshold: float,
    out: str,
    mean: str,
    scale: float,
) -> int:
    if not model or not weights:
        raise UsageError("detect-objects needs a net and its weights: give --model FILE and --weights FILE")
    require_inputs(weights)
    targets = targets_of(images, out)
    names = read_label_map(labelmap) if labelmap else {}
    device = first_gpu(gpu)
    engine = engines.create(device and device[0])
    with log.quiet():
        net = new_net(read_net_for(model, pb.TEST), engine)
    with contextlib.closing(net):
        pictures, rows = _ends(net)
        load(net, weights)
        transformer = _transformer(mean, scale, pictures.shape[1:])
        for path, target in zip(images, targets, strict=True):
            pixels = decode_image(read_file(path), f'"{path}"', Color.COLOR if pictures.shape[1] == 3 else Color.GRAY)
            (decision,) = transformer.decide(1)
            values = np.empty(pictures.shape[1:], np.float32)
            transformer.apply(transformer.augment(pixels, decision), decision, values)
            pictures.data[...] = engine.from_numpy(values)
            net.forward()
            tell_objects(engine.to_numpy(rows.data), path, pixels, target, names, threshold)
    return 0


def tell_objects(
    rows: np.ndarray, path: str, pixels: np.ndarray, target: str, names: dict[int, Any], threshold: float
) -> None:
    """Print the objects in the rows of a DetectionOutput, and draw them into a copy `target` of the picture, unless
    that is empty."""
    objects = _objects(rows.reshape(-1, ROW), threshold, pixels.shape[1:])
    for found in objects:
        say(f"{path}: {name_of(found.label, names)} {found.score:.4f} {' '.join(map(str, found.box))}")
    log.info(f"{path}: {len(objects)} object(s)")
    if target:
        _write_picture(target, draw(pixels, objects, names))


def tell_mask(scores: np.ndarray, path: str, pixels: np.ndarray, target: str, names: dict[int, Any]) -> None:
    """Print the share of the pixels of each class, of scores (1, C, H, W).

    Lays the colours of the classes over a copy `target` of the picture, unless that is empty.
    """
    mask = scores[0].argmax(axis=0).astype(np.uint8)
    counts = np.bincount(mask.ravel(), minlength=len(scores[0]))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
    say(f"{path}: {'  '.join(f'{name_of(label, names)} {counts[label] / mask.size:.1%}' for label in order)}")
    if target:
        height, width = pixels.shape[1:]
        colors = np.array([_color(label) for label in range(len(scores[0]))])
        full = resize_image(mask[np.newaxis], height, width, nearest=True)[0]
        laid = (np.broadcast_to(pixels, (3, height, width)) + colors[full].transpose(2, 0, 1)) / 2
        _write_picture(target, laid.astype(np.uint8))


def _write_picture(target: str, pixels: np.ndarray) -> None:
    content = encode_image(pixels, os.path.splitext(target)[1].lstrip("."))
    with replacing(target, "picture", DataError) as temporary:
        temporary.write_bytes(content)


def _color(label: int) -> list[float]:
    """A colour for a label (blue, green, red)."""
    return [255 * part for part in colorsys.hsv_to_rgb(label * GOLDEN_RATIO % 1, 0.8, 0.9)]


def targets_of(images: tuple[str, ...], out: str) -> list[str]:
    """The path of each drawn picture; empty without a folder. Raises UsageError if one would overwrite another."""
    if not out:
        return [""] * len(images)
    targets = [os.path.join(out, os.path.basename(path)) for path in images]
    if len(set(targets)) < len(targets):
        raise UsageError(f"several pictures have the same name, so they cannot all go to {out}: name fewer at a time")
    for target in targets:
        check_output(target, PICTURE, *images)
    with reading(out, UsageError, "folder for pictures"):
        os.makedirs(out, exist_ok=True)
    return targets


def _ends(net: Net) -> tuple[Blob, Blob]:
    """The net's input, for one picture, and the output with the rows of objects. Raises UsageError if it lacks one."""
    inputs = [blob for node in net.nodes if node.layer.type == "Input" for blob in node.tops]
    pictures = [blob for blob in inputs if len(blob.shape) == 4 and blob.shape[1] in (1, 3)]
    rows = [blob for _, blob, _ in net.outputs() if blob.shape[:2] == (1, 1) and blob.shape[-1] == ROW]
    if not pictures or not rows:
        missing = "output of a DetectionOutput layer" if pictures else "Input layer for pictures, N x 3 x H x W"
        raise UsageError(f'the net "{net.name}" has no {missing}; give the deploy net of a detector')
    pictures[0].reshape(1, *pictures[0].shape[1:])
    net.reshape()
    return pictures[0], rows[0]


def _transformer(mean: str, scale: float, shape: tuple[int, ...]) -> Transformer:
    """Resizes pictures to this shape (C, H, W), subtracts the mean and scales."""
    resize = pb.ResizeParameter(resize_mode=pb.ResizeParameter.WARP, height=shape[1], width=shape[2])
    settings = pb.TransformationParameter(resize_param=[resize], scale=scale)
    try:
        settings.mean_value.extend(float(word) for word in mean.split(",") if mean)
    except ValueError:
        settings.mean_file = mean
    transformer = Transformer(settings, pb.TEST)
    transformer.output_shape(shape)
    return transformer


class Found(NamedTuple):
    """An object: its label, its score in [0, 1], and its box (xmin, ymin, xmax, ymax) in pixels."""

    label: int
    score: float
    box: tuple[int, int, int, int]


def _objects(rows: np.ndarray, threshold: float, size: tuple[int, ...]) -> list[Found]:
    """The objects of these rows in a picture of this height and width, with scores from `threshold` on, best first."""
    rows = rows[(rows[:, 1] >= 0) & (rows[:, 2] >= threshold)]
    rows = rows[falling(rows[:, 2])]
    boxes = in_pixels(rows[:, 3:], ImageSize("", *size), pb.ResizeParameter()).round().astype(int)
    return [Found(int(row[1]), float(row[2]), tuple(box)) for row, box in zip(rows, boxes.tolist(), strict=True)]


def name_of(label: int, names: dict[int, Any]) -> str:
    """The name of a label in a label map, or "label 3" if it is not there."""
    item = names.get(label)
    return (item.display_name or item.name) if item is not None else f"label {label}"


def draw(pixels: np.ndarray, objects: Sequence[Found], names: dict[int, Any]) -> np.ndarray:
    """A copy of the picture (channels x height x width) with the boxes, names and scores of the objects."""
    cv2 = opencv()
    picture = np.array(np.broadcast_to(pixels, (3, *pixels.shape[1:])).transpose(1, 2, 0), order="C")
    size = max(0.4, max(picture.shape) / 1200)
    width = max(1, round(2 * size))
    for found in reversed(objects):  # the best ones on top
        color = _color(found.label)
        x, y, right, bottom = found.box
        cv2.rectangle(picture, (x, y), (right, bottom), color, width)
        text = f"{name_of(found.label, names)} {found.score:.2f}"
        (length, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, width)
        left, top = max(0, min(x, picture.shape[1] - length)), max(0, y - height - below)
        cv2.rectangle(picture, (left, top), (left + length, top + height + below), color, -1)
        cv2.putText(picture, text, (left, top + height), cv2.FONT_HERSHEY_SIMPLEX, size, (0, 0, 0), width, cv2.LINE_AA)
    return picture.transpose(2, 0, 1)
