"""What the layers of a run share: the engine and the sources of randomness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fcaffe.engines import Engine
from fcaffe.rng import CaffeRandom, counter


@dataclass
class Context:
    """Passed to every net of a run, never global.

    `noise` says where Dropout and other noise inside a net comes from: 'caffe' draws from `random`, in Caffe's order,
    one draw an element; 'counter' depends on (seed, layer, iteration, index of the sample in the global batch) only,
    so it does not change with the number of workers.
    """

    engine: Engine
    random: CaffeRandom
    noise: str = "caffe"
    seed: int = 0
    iteration: int = 0
    first_sample: int = 0

    def keep_mask(self, layer: str, shape: tuple[int, ...], ratio: float) -> np.ndarray:
        """True where Dropout keeps an element; probability 1 - ratio."""
        if self.noise == "caffe":
            keep = 1.0 - float(np.float32(ratio))
            return self.random.bernoulli(keep, int(np.prod(shape))).reshape(shape).astype(bool)
        return counter.keep_mask(self.seed, layer, self.iteration, self.first_sample, shape, ratio)

    def uniform(self, layer: str, shape: tuple[int, ...]) -> np.ndarray:
        """float32 in [0, 1) for stochastic pooling."""
        if self.noise == "caffe":
            return self.random.uniform(0.0, 1.0, int(np.prod(shape))).reshape(shape)
        return counter.uniform(self.seed, layer, self.iteration, self.first_sample, shape)
