"""pycaffe's `caffe.Classifier`: a net that classifies pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fcaffe.errors import ArgumentError
from fcaffe.pycaffe import io
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.session import TEST


class Classifier(Net):
    """A deploy net with its weights, and the preprocessing of pictures for its first input (`io.Transformer`).

    Pictures are resized to `image_dims` (height, width), and the net gets crops of its input's size. Without
    `image_dims` it gets the whole picture.
    """

    def __init__(
        self,
        model_file: str,
        pretrained_file: str,
        image_dims: io.Dims | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = transformer_of(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].data.shape[2:])
        self.image_dims: io.Dims = self.crop_dims if image_dims is None or len(image_dims) == 0 else image_dims

    def predict(self, inputs: io.Pictures, oversample: bool = True) -> np.ndarray:
        """Return the net's first output, a row for each picture (H x W x K).

        With `oversample` it is the mean over the ten crops of `io.oversample`, else the output for the central crop.
        """
        if len(inputs) == 0:
            raise ArgumentError("predict needs one picture or more, and was given none")
        resized = np.stack([io.resize_image(picture, self.image_dims) for picture in inputs])
        height, width = (int(size) for size in self.crop_dims)
        if oversample:
            crops = io.oversample(resized, self.crop_dims)
        else:
            y, x = ((np.array(self.image_dims) - self.crop_dims) / 2).astype(int)
            if min(y, x) < 0:
                raise ArgumentError(
                    f"the net's input of {height} x {width} is larger than image_dims {tuple(self.image_dims)}"
                )
            crops = resized[:, y : y + height, x : x + width]
        predictions = first_output(self, crops, self.transformer)
        if oversample:
            return predictions.reshape(len(inputs), 10, -1).mean(1)
        return predictions


def transformer_of(
    net: Net,
    mean: np.ndarray | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> io.Transformer:
    """Return the preprocessing of pictures (H x W x K) for the first input of a net."""
    if not net.inputs:
        raise ArgumentError(f'the net "{net.name}" has no input for pictures; give a deploy net, with an Input layer')
    name = net.inputs[0]
    shape = net.blobs[name].data.shape
    if len(shape) != 4:
        raise ArgumentError(f'the input "{name}" has the shape {shape}; one for pictures is N x K x H x W')
    made = io.Transformer({name: shape})
    made.set_transpose(name, (2, 0, 1))
    if mean is not None:
        made.set_mean(name, mean)
    if input_scale is not None:
        made.set_input_scale(name, input_scale)
    if raw_scale is not None:
        made.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        made.set_channel_swap(name, channel_swap)
    return made


def first_output(net: Net, pictures: io.Pictures, transformer: io.Transformer) -> np.ndarray:
    """Return the first output of a net for each picture. The net gets the pictures batch by batch."""
    name = net.inputs[0]
    _, channels, *_ = net.blobs[name].data.shape
    if pictures[0].shape[-1] != channels:
        raise ArgumentError(
            f'a picture has {pictures[0].shape[-1]} channels, the input "{name}" of the net {channels}; load pictures '
            "with that many"
        )
    batch = np.zeros(net.blobs[name].data.shape, np.float32)
    outputs: list[np.ndarray] = []
    for start in range(0, len(pictures), len(batch)):
        part = pictures[start : start + len(batch)]
        for row, picture in zip(batch, part, strict=False):
            row[...] = transformer.preprocess(name, picture)
        batch[len(part) :] = 0
        made = net.forward(None, None, None, **{name: batch})
        outputs.extend(made[net.outputs[0]][: len(part)].copy())
    return np.asarray(outputs)
