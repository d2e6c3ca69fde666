"""Flags that `fcaffe classify` and `fcaffe detect` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fcaffe.cli import usage
from fcaffe.cli.flags import common_flags, flag, numbers, options_of, with_flags
from fcaffe.pycaffe import session
from fcaffe.tools.numpy_files import load_numpy

REFERENCE = "models/bvlc_reference_caffenet/"  # in the folder of Caffe's sources


@dataclass(frozen=True)
class PictureFlags:
    """The net, and the preprocessing of its images."""

    model_def: str = flag("FILE", "Prototxt of the net.", default=f"{REFERENCE}deploy.prototxt")
    pretrained_model: str = flag("FILE", "The net's weights.", default=f"{REFERENCE}bvlc_reference_caffenet.caffemodel")
    gpu: bool = flag(None, "Compute on the GPU.", default=False, is_flag=True)
    mean_file: str = flag(
        "FILE",
        "The mean to subtract (.npy), channels x height x width; '' for none.",
        default="python/caffe/imagenet/ilsvrc_2012_mean.npy",
    )
    input_scale: float | None = flag("X", "Multiply by this after the mean is subtracted.", default=None, type=float)
    raw_scale: float = flag(
        "X", "Multiply values in [0, 1] by this before the mean is subtracted (255).", default=255.0
    )
    channel_swap: str = flag(
        "K,...", "Order of the channels in the net; 2,1,0 makes BGR of RGB (2,1,0); '' leaves them.", default="2,1,0"
    )

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


def picture_flags(function: Callable[..., int]) -> Callable[..., int]:
    """Add these flags to a click command, whose function gets them as `flags`."""
    return with_flags("flags", PictureFlags, options_of(PictureFlags), usage.OWN)(common_flags(function))
