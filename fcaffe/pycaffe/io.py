"""pycaffe's `caffe.io`: converts blobs and records to arrays, and preprocesses pictures for a net."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.datum import array_to_datum as datum_of_array
from fcaffe.data.images import LARGEST_FILE, decode_pixels, header_of
from fcaffe.errors import ArgumentError, SnapshotError, UsageError
from fcaffe.input_files import read_input
from fcaffe.proto import caffe_pb2
from fcaffe.proto.blobs import stored_blob, to_blob_proto

GRAY = np.array([0.2125, 0.7154, 0.0721])  # scikit-image's weights of red, green and blue in the luminance
SPLINE_ORDERS = range(6)
Dims = Sequence[int] | np.ndarray  # height, width
Pictures = Sequence[np.ndarray] | np.ndarray  # each height x width x channels

# Names of other packages that Caffe's module exposes: the modules, and the package to install.
_EXPOSED = {
    "resize": (("skimage.transform",), "scikit-image"),
    "skimage": (("skimage.io", "skimage.transform", "skimage"), "scikit-image"),
    "zoom": (("scipy.ndimage",), "scipy"),
}

_told: list[str] = []  # the first picture that is turned


def __getattr__(name: str) -> Any:
    """Import `resize` and `skimage` of scikit-image, or `zoom` of SciPy, for scripts; `_spline` uses `zoom`."""
    if name not in _EXPOSED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules, package = _EXPOSED[name]
    try:
        *_, module = (importlib.import_module(module) for module in modules)
    except ImportError as problem:
        raise AttributeError(
            f"caffe.io.{name} is of {package}, which cannot be imported ({problem}): pip install {package}"
        ) from problem
    return module if module.__name__ == name else getattr(module, name)


def blobproto_to_array(blob: Any, return_diff: bool = False) -> np.ndarray:
    """Return the values of a BlobProto, or its gradients, in its shape; float64. ArgumentError if they do not fit."""
    try:
        stored = stored_blob(caffe_pb2.BlobBytes.FromString(blob.SerializeToString()))
    except SnapshotError as problem:
        raise ArgumentError(f"blobproto_to_array: {problem}") from problem
    values = stored.diff if return_diff else stored.data
    if values is None:
        raise ArgumentError(f"blobproto_to_array: the BlobProto of shape {stored.shape} has no diff")
    return values.astype(float)


def array_to_blobproto(arr: np.ndarray, diff: np.ndarray | None = None) -> Any:
    """A BlobProto of an array, and of gradients of the same shape if given."""
    return to_blob_proto(arr, diff)


def arraylist_to_blobprotovector_str(arraylist: Sequence[np.ndarray]) -> bytes:
    return caffe_pb2.BlobProtoVector(blobs=map(array_to_blobproto, arraylist)).SerializeToString()


def blobprotovector_str_to_arraylist(str: bytes) -> list[np.ndarray]:
    return [blobproto_to_array(blob) for blob in caffe_pb2.BlobProtoVector.FromString(str).blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> Any:
    """A Datum of a channels x height x width array: uint8 goes to `data`, anything else to `float_data`."""
    if arr.ndim != 3:
        raise ArgumentError(f"Incorrect array shape. A Datum holds channels x height x width, not {arr.shape}")
    return datum_of_array(arr, label)


def datum_to_array(datum: Any) -> np.ndarray:
    """The channels x height x width array in a Datum that is not encoded: uint8, or float64 from `float_data`."""
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8).copy() if datum.data else np.array(datum.float_data, float)
    if datum.encoded:
        raise ArgumentError("the Datum holds an encoded picture (JPEG, PNG), which datum_to_array does not decode")
    if math.prod(shape) != values.size or min(shape) < 0:
        raise ArgumentError(f"a Datum with {values.size} values has the shape {shape}; it is damaged")
    return values.reshape(shape)


class Transformer:
    """Converts pictures to the layout of a net's inputs, whose shapes (N, K, H, W) are given by name.

    The settings of an input apply in this order: transpose, channel_swap, raw_scale, mean, input_scale.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = inputs
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, np.ndarray] = {}
        self.input_scale: dict[str, float] = {}

    def preprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return a picture (H' x W' x K) for the input `in_`: float32, resized to H x W, with all settings applied.

        `data` does not change.
        """
        self._check_input(in_)
        made = np.array(data, np.float32)
        dims = tuple(self.inputs[in_][2:])
        if made.shape[:2] != dims:
            made = resize_image(made, dims)
        if in_ in self.transpose:
            made = made.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            made = made[list(self.channel_swap[in_])]
        if self.raw_scale.get(in_) is not None:
            made *= self.raw_scale[in_]
        if in_ in self.mean:
            made -= self.mean[in_]
        if self.input_scale.get(in_) is not None:
            made *= self.input_scale[in_]
        return made

    def deprocess(self, in_: str, data: np.ndarray) -> np.ndarray:
        """Return the inverse of `preprocess`, except for the size; removes axes of one element."""
        self._check_input(in_)
        made = data.copy().squeeze()
        if self.input_scale.get(in_) is not None:
            made /= self.input_scale[in_]
        if in_ in self.mean:
            made += self.mean[in_]
        if self.raw_scale.get(in_) is not None:
            made /= self.raw_scale[in_]
        if in_ in self.channel_swap:
            made = made[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            made = made.transpose(np.argsort(self.transpose[in_]))
        return made

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of the picture's axes in the input; (2, 0, 1) converts H x W x K to K x H x W."""
        self._check_input(in_)
        if len(order) != len(self.inputs[in_]) - 1:
            raise UsageError(
                "Transpose order needs to have the same number of dimensions as the input. "
                f'The order {tuple(order)} is for the input "{in_}" of shape {tuple(self.inputs[in_])}'
            )
        self.transpose[in_] = order

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of the channels, the first axis after the transpose; (2, 1, 0) converts RGB to BGR."""
        self._check_input(in_)
        if len(order) != self.inputs[in_][1]:
            raise UsageError(
                "Channel swap needs to have the same number of dimensions as the input channels. "
                f'The order {tuple(order)} is for the input "{in_}" of shape {tuple(self.inputs[in_])}'
            )
        self.channel_swap[in_] = order

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set the factor that applies before the mean is subtracted; 255 for pictures in [0, 1]."""
        self._check_input(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: np.ndarray) -> None:
        """Set the mean: a number for each channel, or an array H' x W' or K x H' x W', resized if necessary."""
        self._check_input(in_)
        shape = tuple(self.inputs[in_][1:])
        if mean.ndim == 1:
            if len(mean) != shape[0]:
                raise ArgumentError(
                    f'Mean channels incompatible with input. The mean has {len(mean)}, the input "{in_}" {shape[0]}'
                )
            mean = mean[:, np.newaxis, np.newaxis]
        elif mean.ndim not in (2, 3):
            raise ArgumentError(f"Mean shape invalid. It is {mean.shape}, and should be K, H x W or K x H x W")
        elif mean.shape != shape[3 - mean.ndim :]:
            planes = mean.reshape(-1, *mean.shape[-2:])
            mean = resize_image(planes.transpose(1, 2, 0), shape[1:]).transpose(2, 0, 1)
        self.mean[in_] = mean

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set the factor that applies after the mean is subtracted."""
        self._check_input(in_)
        self.input_scale[in_] = scale

    def _check_input(self, in_: str) -> None:
        if in_ not in self.inputs:
            raise UsageError(f"{in_} is not one of the net inputs: {self.inputs}")


def load_image(filename: str, color: bool = True) -> np.ndarray:
    """A picture as float32 in [0, 1]: H x W x 3 in the order red, green, blue, or gray H x W x 1 without `color`.

    Gray pictures get three equal channels; an alpha channel is dropped. As with scikit-image, the orientation in
    the metadata is ignored, and GRAY converts colours to gray.
    """
    content = read_input(filename, LARGEST_FILE)
    if header_of(content).orientation > 1 and not _told:
        _told.append(filename)
        log.warning(
            f"{filename} is turned by its EXIF data, which as in Caffe are ignored here; fcaffe.Predictor applies them"
        )
    stored = decode_pixels(content, f'"{filename}"')
    most = np.iinfo(stored.dtype).max if stored.dtype.kind in "iu" else 1
    pixels = (stored.reshape(*stored.shape[:2], -1) / float(most))[:, :, :3][:, :, ::-1]
    if color and pixels.shape[2] == 1:
        pixels = np.tile(pixels, (1, 1, 3))
    elif not color and pixels.shape[2] == 3:
        pixels = (pixels @ GRAY)[:, :, np.newaxis]
    return pixels.astype(np.float32, order="C")


def resize_image(im: np.ndarray, new_dims: Dims, interp_order: int = 1) -> np.ndarray:
    """A picture (H x W x K) in the size `new_dims` (height, width), by splines of order 0 to 5; float32.

    As in Caffe, pictures of one channel or three are resized as by scikit-image's resize with mode="constant" and no
    anti-aliasing: pixels are areas, and the smallest value lies beyond the border. Others are resized as by SciPy's
    zoom: pixels are points, and the centres of the corners stay fixed. Values equal those of these libraries to
    float32's precision. Orders other than 1 need SciPy; scikit-image before 0.19 has other splines of order 2 and 3.
    """
    if im.ndim != 3 or len(new_dims) != 2 or min(*new_dims, *im.shape) < 1:
        raise ArgumentError(
            f"resize_image resizes an array of height x width x channels to another height and width, not one of shape "
            f"{im.shape} to {new_dims}"
        )
    if interp_order not in SPLINE_ORDERS:
        raise ArgumentError(f"resize_image interpolates by splines of order 0 to 5, not {interp_order}")
    least, most = float(im.min()), float(im.max())
    areas = im.shape[2] in (1, 3)
    if areas and least == most:
        return np.full((*new_dims, im.shape[2]), least, np.float32)
    made = im - least if areas else im
    if interp_order == 1:
        for axis, size in enumerate(new_dims):
            made = _resampled(made, axis, int(size), areas)
    else:
        made = _spline(made, new_dims, int(interp_order), areas)
    return (np.clip(made, 0, most - least) + least if areas else made).astype(np.float32)


def oversample(images: Pictures, crop_dims: Dims) -> np.ndarray:
    """Return ten crops (height, width) of each picture: its corners and centre, and their mirror images."""
    height, width = (int(size) for size in crop_dims)
    rows, columns, channels = images[0].shape
    if height > rows or width > columns:
        raise ArgumentError(f"crops of {height} x {width} do not fit into pictures of {rows} x {columns}")
    corners = [(y, x) for y in (0, rows - height) for x in (0, columns - width)]
    centre = (int(rows / 2 - height / 2), int(columns / 2 - width / 2))
    crops = np.empty((len(images), 2, 5, height, width, channels), np.float32)
    for made, image in zip(crops, images, strict=True):
        for number, (y, x) in enumerate([*corners, centre]):
            made[0, number] = image[y : y + height, x : x + width]
        made[1] = made[0, :, :, ::-1]
    return crops.reshape(-1, height, width, channels)


def _resampled(values: np.ndarray, axis: int, new: int, areas: bool) -> np.ndarray:
    """Interpolate an array of three axes linearly to `new` values along one of them.

    Pixels are areas, with zeros beyond the border, or points, of which the first and last stay fixed.
    """
    values = np.moveaxis(values, axis, 0)
    if areas:
        positions = (np.arange(new) + 0.5) * (len(values) / new) + 0.5
        values = np.pad(values, [(1, 1), (0, 0), (0, 0)])
    else:
        positions = np.arange(new) * ((len(values) - 1) / max(new - 1, 1))
    first = np.minimum(np.floor(positions).astype(int), len(values) - 2)  # -1 and 0 are the same if there is one value
    share = (positions - first)[:, np.newaxis, np.newaxis]
    return np.moveaxis(values[first] * (1 - share) + values[first + 1] * share, 0, axis)


def _spline(values: np.ndarray, dims: Dims, order: int, areas: bool) -> np.ndarray:
    """Interpolate an array of three axes to this height and width by SciPy's splines. Arguments as for `_resampled`."""
    try:
        zoom = __getattr__("zoom")
    except AttributeError as problem:
        raise UsageError(f"resize_image with interp_order {order}: {problem}") from problem
    factors = (*(np.array(dims) / values.shape[:2]), 1)
    mode = "grid-constant" if areas else "constant"
    return np.asarray(zoom(values.astype(float), factors, order=order, mode=mode, grid_mode=areas))
