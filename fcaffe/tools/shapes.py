"""Hollow nets: built for their shapes alone, without memory for values, data sets or random numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.data.annotated import MOST_OBJECTS
from fcaffe.engines import Engine
from fcaffe.errors import FcaffeError, NetError
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net
from fcaffe.pycaffe.python import code_of
from fcaffe.rng import CaffeRandom

Shape = tuple[int, ...]

# Layer types that read files, and the fields with their source and batch size.
READERS = {
    "AnnotatedData": "data_param",
    "Data": "data_param",
    "DenseImageData": "dense_image_data_param",
    "HDF5Data": "hdf5_data_param",
    "ImageData": "image_data_param",
    "WindowData": "window_data_param",
}


class _HollowArray(np.ndarray):
    """An array that ignores writes, also those to its views."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _Hollow:
    """NumPy, except that `zeros` allocates one element, which all indices share."""

    holds_values = False

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def zeros(shape: int | Shape, dtype: Any = float) -> np.ndarray:
        shape = (shape,) if isinstance(shape, int) else shape
        hollow = np.zeros(1, dtype).view(_HollowArray)
        return np.lib.stride_tricks.as_strided(hollow, shape, (0,) * len(shape), subok=True)


def hollow_net(
    param: Any,
    path: str,
    input_shape: Sequence[int] | None = None,
    whole_passes: bool = False,
) -> tuple[Net, dict[str, str]]:
    """The net of filtered parameters, which cannot run, and the type of each layer that an Input replaces.

    An Input replaces a layer whose files are missing. The shape of its records is `input_shape` (C, H, W), or else the
    layer's crop, or else the shape of the same blob in a deploy.prototxt in the folder of the net's file `path`. Raises
    NetError without any of these. `whole_passes` is that of Context.
    """
    stood_in = {}
    for layer in param.layer:
        if layer.type == "Python":  # users may not expect that a summary runs code
            log.warning(f"{code_of(layer)} runs from here on, to learn its shapes")
        if layer.type == "DetectionEvaluate":
            layer.detection_evaluate_param.ClearField("name_size_file")
        if layer.type in READERS and not os.path.exists(source := reader_of(layer).source):
            stood_in[layer.name] = layer.type
            (_, *shape), origin = replace_reader(layer, "Input", path, input_shape)
            log.warning(
                f'layer "{layer.name}": {source or "its source"} does not exist; '
                f"records of {' x '.join(map(str, shape))} are assumed ({origin})"
            )
    return Net(param, hollow_context(whole_passes)), stood_in


def hollow_context(whole_passes: bool = False) -> Context:
    """The context of hollow nets, or of single layers that are set up for the shapes of their tops."""
    return Context(Engine(_Hollow()), CaffeRandom(0), whole_passes=whole_passes)


def reader_of(layer: Any) -> Any:
    """The message with the source and the batch size of a layer that reads files."""
    return getattr(layer, READERS[layer.type])


def replace_reader(layer: Any, kind: str, path: str, input_shape: Sequence[int] | None) -> tuple[Shape, str]:
    """Replace a layer that reads files by one of this type, whose input_param has the shapes of its tops.

    Returns the shape of the first top, and its origin.
    """
    batch = reader_of(layer).batch_size
    shape, origin = record_shape(layer, path, input_shape)
    labels: Shape = (batch,)
    if layer.type == "AnnotatedData":
        for_yolo = layer.annotated_data_param.yolo_data_type == 1
        labels = (batch, 1, MOST_OBJECTS, 5) if for_yolo else (1, 1, batch, 8)
    if layer.type == "DenseImageData":
        divisor = max(1, layer.dense_image_data_param.label_divide_factor)
        labels = (batch, 1, *(size // divisor for size in shape[1:]))
    made = pb.LayerParameter(name=layer.name, type=kind, top=layer.top)
    made.input_param.shape.extend(
        pb.BlobShape(dim=dims) for dims in [(batch, *shape)] + [labels] * (len(layer.top) - 1)
    )
    layer.CopyFrom(made)
    return (batch, *shape), origin


def record_shape(layer: Any, path: str, input_shape: Sequence[int] | None) -> tuple[Shape, str]:
    """(C, H, W) of the records of a layer that reads files, as in `hollow_net`, and the origin of this shape."""
    if input_shape:
        return tuple(input_shape), "--input-shape"
    transform = layer.transform_param
    deploy = os.path.join(os.path.dirname(path), "deploy.prototxt")
    deployed = _input_shape(deploy, layer.top[0])
    if transform.crop_size:
        gray = len(transform.mean_value) == 1 or transform.force_gray
        channels = deployed[0] if len(deployed) == 3 else 1 if gray else 3
        return (channels, transform.crop_size, transform.crop_size), "crop_size"
    if transform.resize_param and transform.resize_param[0].resize_mode != pb.ResizeParameter.FIT_SMALL_SIZE:
        return (3, transform.resize_param[0].height, transform.resize_param[0].width), "resize_param"
    if deployed:
        return deployed, f"from {deploy}"
    source = reader_of(layer).source or "its source"
    if os.path.exists(source):
        unknown = f"without reading {source}, as there is no crop_size; use the data itself, or give the shape"
    else:
        unknown = f"since {source} does not exist and there is no crop_size; make the data set, or give the shape"
    raise NetError(f'layer "{layer.name}": the shape of its records is unknown, {unknown} as --input-shape C,H,W')


def _input_shape(path: str, blob: str) -> Shape:
    """The shape, without the batch, of an input blob of the net at `path`, or () if there is none."""
    if not os.path.exists(path):
        return ()
    try:
        param = read_net(path)
    except FcaffeError:
        return ()
    for layer in param.layer:
        if layer.type == "Input" and blob in layer.top:
            shapes = layer.input_param.shape
            index = list(layer.top).index(blob) if len(shapes) > 1 else 0
            return tuple(shapes[index].dim[1:]) if index < len(shapes) else ()
    return ()
