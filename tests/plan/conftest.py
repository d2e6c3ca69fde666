from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fcaffe.plan.work import Work, work_of_net

ROOT = Path(__file__).parents[2]


@cache
def work_of(name: str) -> Work:
    return work_of_net(str(ROOT / "models" / name))


@pytest.fixture(scope="session")
def googlenet() -> Work:
    return work_of("googlenet/train_val_firecaffe.prototxt")


@pytest.fixture(scope="session")
def nin() -> Work:
    return work_of("nin_imagenet/train_val.prototxt")


@pytest.fixture(scope="session")
def small() -> Work:
    return work_of("nin_cifar10/train_val.prototxt")
