"""Flags that `fcaffe classify` and `fcaffe detect` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click
import numpy as np

from fcaffe.cli import usage
from fcaffe.cli.flags import Decorator, common_flags, numbers, with_flags
from fcaffe.pycaffe import session
from fcaffe.tools.numpy_files import load_numpy

REFERENCE = "models/bvlc_reference_caffenet/"  # in the folder of Caffe's sources


@dataclass(frozen=True)
class PictureFlags:
    """The net, and the preprocessing of its images."""

    model_def: str
    pretrained_model: str
    gpu: bool
    mean_file: str
    input_scale: float | None
    raw_scale: float
    channel_swap: str

    def mean(self) -> np.ndarray | None:
        if not self.mean_file:
            return None
        return load_numpy(self.mean_file, "a mean (.npy; --mean_file '' subtracts none)")

    def channels(self) -> list[int] | None:
        return numbers("--channel_swap", self.channel_swap, least=0) if self.channel_swap else None

    def set_mode(self) -> None:
        """Compute on the CPU or, with --gpu, on the first GPU, and say so."""
        if self.gpu:
            session.set_mode_gpu()
        else:
            session.set_mode_cpu()
        print("GPU mode" if self.gpu else "CPU mode")


_OPTIONS: list[Decorator] = [
    click.option("--model_def", default=f"{REFERENCE}deploy.prototxt", metavar="FILE", help="Prototxt of the net."),
    click.option(
        "--pretrained_model",
        default=f"{REFERENCE}bvlc_reference_caffenet.caffemodel",
        metavar="FILE",
        help="The net's weights.",
    ),
    click.option("--gpu", is_flag=True, help="Compute on the GPU."),
    click.option(
        "--mean_file",
        default="python/caffe/imagenet/ilsvrc_2012_mean.npy",
        metavar="FILE",
        help="The mean to subtract (.npy), channels x height x width; '' for none.",
    ),
    click.option("--input_scale", type=float, metavar="X", help="Multiply by this after the mean is subtracted."),
    click.option(
        "--raw_scale",
        type=float,
        default=255.0,
        metavar="X",
        help="Multiply values in [0, 1] by this before the mean is subtracted (255).",
    ),
    click.option(
        "--channel_swap",
        default="2,1,0",
        metavar="K,...",
        help="Order of the channels in the net; 2,1,0 makes BGR of RGB (2,1,0); '' leaves them.",
    ),
]


def picture_flags(function: Callable[..., int]) -> Callable[..., int]:
    """Add these flags to a click command, whose function gets them as `flags`."""
    return with_flags("flags", PictureFlags, _OPTIONS, usage.OWN)(common_flags(function))
