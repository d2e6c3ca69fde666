"""What the layers of a net share."""

import pytest

from fcaffe.errors import NetError
from fcaffe.net import Context
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.share import Share, split_batch
from tests.engine_choice import engine


class SecondOfTwo(Workers):
    rank, size = 1, 2

    def share(self, batch_size: int) -> Share:
        return split_batch(batch_size, self.rank, self.size)

    def sum(self, value: float) -> float:
        return 10 * value


def test_layers_that_read_agree_in_the_batch_that_workers_split() -> None:
    context = Context(engine(), CaffeRandom(1), workers=SecondOfTwo())
    assert context.share is None
    assert context.share_of(32) == context.share_of(32) == context.share == Share(16, 16, 32)
    with pytest.raises(NetError, match=r"^reads batches of 64, another layer of this net of 32$"):
        context.share_of(64)


def test_an_unheard_worker_has_its_own_sums() -> None:
    context = Context(engine(), CaffeRandom(1), workers=SecondOfTwo())
    with context.unheard():
        assert context.workers.sum(2.0) == 2
    assert context.workers.sum(2.0) == 20
