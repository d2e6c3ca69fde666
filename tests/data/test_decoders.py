import threading
import time

import numpy as np
import pytest

from fcaffe.data.batches import Decoders
from fcaffe.errors import DataError


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 41])
def test_does_each_once(threads, count):
    decoders = Decoders(threads)
    done = np.zeros(count, int)

    def work(index):
        done[index] += 1

    for _ in range(3):
        decoders.each(work, count)
    assert (done == 3).all()
    decoders.close()


def test_works_in_several_threads_at_a_time():
    decoders = Decoders(3)
    together = threading.Barrier(3, timeout=300)
    decoders.each(lambda index: together.wait(), 3)
    decoders.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


@pytest.mark.parametrize("threads", [1, 4])
def test_raises_the_first_error_in_order(threads):
    decoders = Decoders(threads)

    def work(index):
        time.sleep(0.02 if index == 5 else 0)
        if index in (5, 30):
            raise DataError(f"picture {index}")

    with pytest.raises(DataError, match="picture 5"):
        decoders.each(work, 40)
    decoders.close()
