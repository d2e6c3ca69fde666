"""`fcaffe detect-objects`: finds objects in pictures by a detection net, and draws their boxes."""

from __future__ import annotations

import os

import click

from fcaffe import log
from fcaffe.cli.engine import EngineFlags, engine_flags
from fcaffe.cli.flags import Flags, caffe_flags
from fcaffe.cli.gpus import first_gpu
from fcaffe.cli.usage import Command
from fcaffe.data.images import encode_image
from fcaffe.data.label_map import read_label_map
from fcaffe.errors import DataError, UsageError
from fcaffe.net.weights import load_weights, tell_untouched
from fcaffe.output_files import replacing
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import load_net
from fcaffe.tools.object_detection import ObjectDetector, draw, name_of


@click.command(
    "detect-objects",
    cls=Command,
    example="detect-objects --model deploy.prototxt --weights ssd.caffemodel --labelmap labelmap_voc.prototxt "
    "--out drawn street.jpg",
    help="Find objects in the pictures IMAGE by the detection net --model FILE, whose output is that of a "
    "DetectionOutput or Yolov3DetectionOutput layer. Prints a line for each: the picture, the name of the class, the "
    "score, and xmin, ymin, xmax and ymax in pixels.",
)
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@click.option("--labelmap", default="", metavar="FILE", help="Names of the classes: a label map of SSD (prototxt).")
@click.option("--threshold", type=float, default=0.5, metavar="X", help="Lowest score of an object (0.5).")
@click.option("--out", default="", metavar="FOLDER", help="Write copies of the pictures with the boxes drawn here.")
@click.option(
    "--mean",
    default="104,117,123",
    metavar="X,...|FILE",
    help="Subtract these values of the channels blue, green and red, or a mean image (104,117,123: VGG's; '': none).",
)
@click.option(
    "--scale", type=float, default=1.0, metavar="X", help="Multiply by this after the mean is subtracted (1)."
)
@engine_flags
@caffe_flags("model", "weights", "gpu", "level", "stage")
def detect_objects(
    flags: Flags,
    engines: EngineFlags,
    images: tuple[str, ...],
    labelmap: str,
    threshold: float,
    out: str,
    mean: str,
    scale: float,
) -> int:
    if not flags.model or not flags.weights:
        raise UsageError("detect-objects needs a net and its weights: give --model FILE and --weights FILE")
    targets = _targets(images, out)
    names = read_label_map(labelmap) if labelmap else {}
    transform = _transform(mean, scale)
    gpu = first_gpu(flags.gpu)
    engine = engines.create(gpu and gpu[0])
    with log.quiet():
        net = load_net(flags.model, pb.TEST, engine, flags.level, flags.stages, inference=True)
    try:
        model = load_weights(net, flags.weights)
        tell_untouched(net, {layer.name for layer in model.layers}, flags.weights)
        detector = ObjectDetector(net, transform)
        with engine.fixed_weights():
            for path, target in zip(images, targets, strict=True):
                pixels = detector.read(path)
                objects = detector.find(pixels, threshold)
                for found in objects:
                    box = " ".join(map(str, found.box))
                    print(f"{path}: {name_of(found.label, names)} {found.score:.4f} {box}")
                log.info(f"{path}: {len(objects)} object(s)")
                if target:
                    content = encode_image(draw(pixels, objects, names), os.path.splitext(target)[1].lstrip("."))
                    with replacing(target, "picture", DataError) as temporary:
                        temporary.write_bytes(content)
    finally:
        net.close()
    return 0


def _targets(images: tuple[str, ...], out: str) -> list[str]:
    """The path of each drawn picture; empty without a folder. Raises UsageError if one would overwrite another."""
    if not out:
        return [""] * len(images)
    targets = [os.path.join(out, os.path.basename(path)) for path in images]
    if len(set(targets)) < len(targets):
        raise UsageError(f"several pictures have the same name, so they cannot all go to {out}: name fewer at a time")
    for path, target in zip(images, targets, strict=True):
        if os.path.exists(target) and os.path.samefile(path, target):
            raise UsageError(f"--out {out} would overwrite {path}; name another folder")
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"cannot make the folder {out}: {problem.strerror}") from problem
    return targets


def _transform(mean: str, scale: float) -> pb.TransformationParameter:
    """The TransformationParameter of these flags."""
    transform = pb.TransformationParameter(scale=scale)
    try:
        transform.mean_value.extend(float(word) for word in mean.split(",") if mean)
    except ValueError:
        transform.mean_file = mean
    return transform
