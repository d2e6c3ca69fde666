"""Flags that `fcaffe classify` and `fcaffe detect` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from fcaffe.cli import usage
from fcaffe.cli.flags import flag, numbers, with_flags
from fcaffe.pycaffe import session
from fcaffe.tools.numpy_files import load_numpy

REFERENCE = "models/bvlc_reference_caffenet/"  # in the folder of Caffe's sources


Made = TypeVar("Made")


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

    def create(self, kind: Callable[..., Made], mean: np.ndarray | None, **settings: Any) -> Made:
        """Create a Classifier or Detector, on the CPU or, with --gpu, on the first GPU."""
        channels = numbers("--channel_swap", self.channel_swap, least=0) if self.channel_swap else None
        (session.set_mode_gpu if self.gpu else session.set_mode_cpu)()
        print("GPU mode" if self.gpu else "CPU mode")
        scales = {"input_scale": self.input_scale, "raw_scale": self.raw_scale}
        return kind(self.model_def, self.pretrained_model, mean=mean, channel_swap=channels, **scales, **settings)


picture_flags = with_flags("flags", PictureFlags, usage.OWN)
