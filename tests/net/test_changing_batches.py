"""Random nets for inference, fed with other batch sizes from pass to pass: whole passes give what layers give."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from fcaffe.net import Net
from tests.engine_choice import engine
from tests.net.random_nets import CLASSES, RandomNet
from tests.net.test_inference_nets import check, net_of

BATCHES = [3, 3, 3, 5, 1, 1, 4, 3]
SEEDS = range(12)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    openmp: ctypes.CDLL | None,
    on_each_engine: None,
) -> Iterator[None]:
    """This many threads for NumPy's engine and for oneDNN."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(request.param))
    before = openmp.omp_get_max_threads() if openmp else 1
    if openmp:
        openmp.omp_set_num_threads(request.param)
    yield
    if openmp:
        openmp.omp_set_num_threads(before)


def feed(net: Net, random_net: RandomNet, batch: int, seed: int) -> None:
    """Give the inputs of a net another batch."""
    random = np.random.default_rng(seed)
    for name, holds in random_net.inputs.items():
        blob = net.blob(name)
        blob.reshape(batch, *blob.shape[1:])
        drawn = random.uniform(0, 1, blob.shape)
        of = {"images": 4 * drawn - 2, "labels": drawn * CLASSES, "indices": drawn * batch, "noise": drawn}[holds]
        blob.data[...] = of if holds in ("images", "noise") else np.floor(of)
    net.reshape()


def compare(seed: int, batches: list[int]) -> None:
    made, used = RandomNet(seed, fed=True), engine()
    whole, plain = net_of(made.text, True, used), net_of(made.text, False, used)
    for number, batch in enumerate([made.batch] * 4 if made.fixed_batch else batches):
        for net in whole, plain:
            feed(net, made, batch, number)
            net.forward()
        check(whole, plain, f"seed {seed}, pass {number} of batch {batch}\n{made.text}")


def test_small_blobs() -> None:
    for seed in SEEDS:
        compare(seed, BATCHES)
