"""What the layers of a net share."""

from fcaffe.net import Context
from fcaffe.net.placements import REPLICATE, Shard
from fcaffe.net.workers import Workers
from fcaffe.rng import CaffeRandom
from fcaffe.share import Share
from tests.engine_choice import engine


class SecondOfTwo(Workers):
    rank, size = 1, 2

    def sum(self, value: float) -> float:
        return 10 * value


def test_the_largest_batch_is_the_one_that_workers_split() -> None:
    context = Context(engine(), CaffeRandom(1), workers=SecondOfTwo())
    assert context.share is None
    assert context.share_of(32) == (Share(16, 16, 32), Shard(0, 32))
    assert context.share_of(16) == (Share(8, 8, 16), Shard(0, 16))
    assert context.share_of(1) == (Share(0, 1, 1), REPLICATE)
    assert context.share == Share(16, 16, 32)


def test_a_worker_without_others_has_its_own_sums() -> None:
    context = Context(engine(), CaffeRandom(1), workers=SecondOfTwo())
    with context.without_others():
        assert context.workers.sum(2.0) == 2
    assert context.workers.sum(2.0) == 20
