"""How a picture becomes the input of a net: one statement, which all commands and scripts take from the net's files.

The statement has two parts: the form of the pictures in the data set (`fcaffe.data.form`: info.json beside the
databases, or else the size of their records), and the transform_param of the data layer of phase TEST. A deploy net has
that transform_param in its Input, and may have info.json and mean.binaryproto beside it, as DIGITS writes them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.backends import open_database
from fcaffe.data.datum import datum_to_array, parse_datum
from fcaffe.data.form import INFO, LABELS, MEAN, Form, labels_beside, read_form, read_labels
from fcaffe.data.images import header_of, opencv, read_file
from fcaffe.data.transformer import Decision, Transformer
from fcaffe.errors import ArgumentError, DataError, UsageError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.deploy import is_source, test_layers
from fcaffe.tools.shapes import reader_of

# What pictures are to the weights of a converted net: a line of the prototxt.
NOTE = re.compile(r"^# Pictures: (\w+), / 255, minus ([\d., ]+), / ([\d., ]+)", re.MULTILINE)
TORCHVISION = (
    "# Pictures: RGB, / 255, minus 0.485, 0.456, 0.406, / 0.229, 0.224, 0.225\n"
    "# (as torchvision trains; if it was not so, correct this line before fcaffe new reads it)"
)

CENTRE = Decision(0, 0, 0, 0)
ORDERS = ("BGR", "RGB")
STEPS = {  # of a picture, in their order, and the fields of transform_param that say them
    "again": ("resize_param",),  # resized, after the data set's own size
    "cropped": ("crop_size", "crop_h", "crop_w"),  # in the centre
    "minus": ("mean_file", "mean_value"),
    "times": ("scale",),
}


@dataclass
class Preprocessing:
    """From a picture to an input of a net: `form.load`, then crop, mean and scale of `transform`, as in phase TEST.

    Attributes:
        form: how the data set stores pictures.
        transform: a TransformationParameter.
        labels: the names of the classes; [] if they are unknown.
        origin: the files that say so, for messages.
    """

    form: Form
    transform: Any = field(default_factory=pb.TransformationParameter)
    labels: list[str] = field(default_factory=list)
    origin: str = "the flags"

    def __post_init__(self) -> None:
        with log.quiet():
            self._centre = Transformer(self.transform, pb.TEST)
            self._anywhere = Transformer(self.transform, pb.TRAIN)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the net's input, channels x height x width; None if it is that of each picture."""
        crop = self._centre.crop if all(self._centre.crop) else None
        size = self.form.size or crop or ((1, 1) if self._centre.resizes else None)
        return None if size is None else self.apply(np.zeros((self.form.channels, *size), np.uint8)).shape

    @property
    def mean(self) -> np.ndarray | None:
        """The mean to subtract: an image, or a value for each channel or for all; None without."""
        mean = self._centre.mean
        return mean if mean is None or self.transform.mean_file else mean.reshape(-1)

    def pixels(self, picture: Any, order: str = "") -> np.ndarray:
        """A picture as the data set stores it: uint8, channels x height x width, of blue, green, red or gray.

        Args:
            picture: the path of a file; an image of PIL; or an array of uint8, height x width [x 1 or 3].
            order: of the channels of an array, RGB or BGR.

        Raises DataError for a damaged file, and ArgumentError for other values.
        """
        if isinstance(picture, str | os.PathLike):
            path = os.fspath(picture)
            return self.form.load(read_file(path), f'"{path}"')
        if hasattr(picture, "getexif") and hasattr(picture, "convert"):
            from PIL import ImageOps

            return self._of_array(np.asarray(ImageOps.exif_transpose(picture).convert("RGB")), "RGB")
        return self._of_array(np.asarray(picture), order)

    def _of_array(self, array: np.ndarray, order: str) -> np.ndarray:
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (1,), (3,)):
            raise ArgumentError(
                f"a picture is a path, an image of PIL, or an array of uint8 in height x width x 3 (or x 1); this is "
                f"{array.dtype} of the shape {array.shape}"
            )
        pixels = array.reshape(*array.shape[:2], -1)
        if pixels.shape[2] == 3:
            if order not in ORDERS:
                raise ArgumentError('say in which order the channels of the arrays are: order="RGB", or "BGR" (OpenCV)')
            pixels = pixels[:, :, ::-1] if order == "RGB" else pixels
        if pixels.shape[2] != self.form.channels:
            cv2 = opencv()
            code = cv2.COLOR_BGR2GRAY if self.form.channels == 1 else cv2.COLOR_GRAY2BGR
            pixels = cv2.cvtColor(np.ascontiguousarray(pixels), code)
        pixels = pixels.reshape(*array.shape[:2], -1)
        return self.form.fit(np.ascontiguousarray(pixels).transpose(2, 0, 1))

    def apply(self, pixels: np.ndarray, decision: Decision = CENTRE) -> np.ndarray:
        """Pixels of the data set's form as the net's input: float32, channels x height x width. Raises DataError."""
        transformer = self._centre if decision is CENTRE else self._anywhere
        image = transformer.augment(pixels, CENTRE)
        made = np.empty(transformer.output_shape(image.shape), np.float32)
        transformer.apply(image, decision, made)
        return made

    def load(self, picture: Any, order: str = "") -> np.ndarray:
        """A picture as the net's input: float32, channels x height x width. Arguments and errors as for `pixels`."""
        return self.apply(self.pixels(picture, order))

    def crops(self, pixels: np.ndarray) -> list[np.ndarray]:
        """The net's inputs for the corners and the centre of a picture, and for their mirror images. UsageError."""
        height, width = self._centre.augment(pixels, CENTRE).shape[1:]
        rooms = [own - crop for own, crop in zip((height, width), self._centre.crop, strict=True)]
        if not self._centre.crop[0] or not any(rooms):
            raise UsageError("ten crops need a net whose data layer crops (crop_size) pictures that are larger")
        corners = [(y, x) for y in (0, rooms[0]) for x in (0, rooms[1])]
        offsets = [*corners, (rooms[0] // 2, rooms[1] // 2)]
        return [self.apply(pixels, Decision(mirror, *offset, 0)) for mirror in (0, 1) for offset in offsets]

    def steps(self, path: str) -> Iterator[str]:
        """Yields lines that say what happens to the picture in a file, with its first values after each step."""
        content = read_file(path)
        header, stored = header_of(content), self.form._replace(size=None).load(content, f'"{path}"')
        kind = f", {header.channels} channels, EXIF orientation {header.orientation}" if header.channels else ""
        yield f"file      {len(content):,} bytes{kind}"
        order = "gray" if self.form.channels == 1 else "blue, green, red"
        yield f"decoded   {_shape(stored)} ({order}), uint8: {_first(stored)}"
        pixels = self.form.fit(stored)
        yield f"resized   {_shape(pixels)} ({self.form.mode}, bilinear): {_first(pixels)}"
        partial = pb.TransformationParameter()
        for step, names in STEPS.items():
            told = []
            for descriptor, value in self.transform.ListFields():
                if descriptor.name in names:
                    told.append(" ".join(f"{descriptor.name} {value}".split()))
                    partial.MergeFrom(pb.TransformationParameter(**{descriptor.name: value}))
            if told:
                values = Preprocessing(self.form, partial).apply(pixels)
                yield f"{step:9} {_shape(values)} ({', '.join(told)}): {_first(values)}"
        made = self.apply(pixels)
        yield f"input     {_shape(made)}, float32, from {made.min():g} to {made.max():g}: {_first(made)}"
        yield f"This is in {self.origin}."


def _shape(array: np.ndarray) -> str:
    return " x ".join(map(str, array.shape))


def _first(array: np.ndarray) -> str:
    return (
        " ".join(f"{value:.6g}" for value in array[:, 0, :3].ravel().tolist()) + " ... (3 of the first row by channel)"
    )


def of_net(param: Any, path: str, size: tuple[int, int] | None = None, is_stated: bool = False) -> Preprocessing:
    """The preprocessing of the net in the prototxt at `path`: of its first layer that reads pictures in phase TEST.

    `size` counts instead of that of the data set, and `is_stated` lets an Input without a transform_param take plain
    bytes. Raises UsageError, DataError if the preprocessing is not stated, with the remedy.
    """
    sources = [layer for layer in test_layers(param).layer if is_source(layer)]
    layer = next((one for one in sources if one.type in ("Data", "ImageData", "AnnotatedData", "Input")), None)
    if layer is None:
        kinds = ", ".join(sorted({one.type for one in sources})) or "no data layer"
        raise UsageError(
            f"{path} has {kinds} in phase TEST, which does not say how a picture is read: name a net with a Data or "
            "ImageData layer, or run the net from a script"
        )
    if layer.type == "Input":
        return _of_deploy(layer, path, size, is_stated)
    if layer.type == "ImageData":
        data = layer.image_data_param
        own = (data.new_height, data.new_width) if data.new_height and data.new_width else None
        form, folder = Form(3 if data.is_color else 1, own), data.source
    else:
        folder = reader_of(layer).source
        form = _form_of_database(folder, path, layer, size)
    form = form._replace(size=size or form.size)
    return Preprocessing(form, layer.transform_param, labels_beside(folder), f'layer "{layer.name}" of {path}')


def _form_of_database(source: str, path: str, layer: Any, size: tuple[int, int] | None) -> Form:
    """The form in the info.json beside a database, or that of its first record. Without both it has this size."""
    for folder in (os.path.dirname(os.path.normpath(source)), os.path.dirname(path)):
        form, _ = read_form(folder)
        if form is not None:
            return form
    if not os.path.exists(source):
        if size is not None:
            return Form(3, size)
        raise UsageError(
            f'layer "{layer.name}" of {path}: {source} is not there, nor {INFO} beside it, so the size of its pictures '
            "is unknown; start in the folder that the paths begin in, or give --size HxW"
        )
    with log.quiet(), contextlib.closing(open_database(source)) as database:
        key, value = database.peek()
        if layer.type == "AnnotatedData":
            value = pb.AnnotatedDatum.FromString(value).datum.SerializeToString()
        image = datum_to_array(parse_datum(key, value), key, Transformer(layer.transform_param, pb.TEST).color)
    if image.dtype != np.uint8 or image.shape[0] not in (1, 3):
        raise DataError(f"{source} holds no pictures but {image.dtype} of the shape {image.shape}; use a script")
    resizes = bool(layer.transform_param.resize_param)
    return Form(image.shape[0], None if resizes else image.shape[1:])


def _of_deploy(layer: Any, path: str, size: tuple[int, int] | None, is_stated: bool) -> Preprocessing:
    """The preprocessing of a deploy net, by its transform_param and by the files beside it."""
    folder = os.path.dirname(path)
    dims = list(layer.input_param.shape[0].dim) if layer.input_param.shape else []
    if len(dims) != 4 or dims[1] not in (1, 3):
        raise UsageError(f'{path}: the input "{layer.name}" has the shape {dims}; one for pictures is N x 3 x H x W')
    form, fields = read_form(folder)
    transform = pb.TransformationParameter()
    transform.CopyFrom(layer.transform_param)
    is_stated |= layer.HasField("transform_param")
    crop = transform.crop_size or (transform.crop_h and transform.crop_w)
    if form is not None and not is_stated:  # as in a download from DIGITS
        mean, is_stated = os.path.join(folder, fields.get("mean file") or MEAN), True
        if fields.get("mean subtraction", "image") != "none" and os.path.isfile(mean):
            transform.mean_file = mean
            if fields.get("mean subtraction") == "pixel":
                from fcaffe.data.mean import read_mean

                transform.mean_value.extend(read_mean(mean).mean(axis=(1, 2)).tolist())
                transform.ClearField("mean_file")
        if form.size != tuple(dims[2:]):
            transform.crop_h, transform.crop_w = dims[2:]
    if not is_stated and size is None:
        raise UsageError(
            f"{path} does not say how a picture becomes its input: name the train_val net that it was made from, put "
            f"{INFO} and {MEAN} beside it, or give --mean (and --scale, --size)"
        )
    if form is None:
        source = _folder_of_mean(transform)
        form, _ = read_form(source) if source else (None, {})
    if form is None:
        if crop and not transform.resize_param and size is None:
            raise UsageError(
                f"{path} crops pictures, and {INFO} is neither beside it nor beside its mean file, so their size "
                "before the crop is unknown: give --size HxW"
            )
        form = Form(dims[1], None if transform.resize_param else (dims[2], dims[3]))
    form = form._replace(size=size or form.size)
    named = os.path.join(folder, fields.get("labels file") or LABELS)
    labels = read_labels(named) if os.path.isfile(named) else labels_beside(transform.mean_file)
    return Preprocessing(form, transform, labels, f'layer "{layer.name}" of {path}')


def _folder_of_mean(transform: Any) -> str:
    return os.path.dirname(transform.mean_file) if transform.mean_file else ""
