import gc
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fcaffe.data.prefetch import Prefetcher
from fcaffe.errors import DataError


class Counting:
    """Batch k holds k; `delay` seconds each; fails at batch `fail_at`."""

    def __init__(self, delay=0.0, fail_at=None):
        self.position = 0
        self.delay = delay
        self.fail_at = fail_at
        self.highest = 0

    def fill(self, batch):
        time.sleep(self.delay)
        if self.position == self.fail_at:
            raise DataError(f"batch {self.position} is bad")
        batch.reshape((2, 3, 4, 5))
        batch.data[...] = self.position
        batch.labels[...] = self.position
        self.position += 1
        self.highest = max(self.highest, self.position)

    def state(self):
        return self.position, b"r%d" % self.position

    def set_state(self, position, random):
        self.position = position

    def close(self):
        pass


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_batches_come_in_order_with_the_state_after_each():
    prefetcher = Prefetcher(Counting(), 3)
    for index in range(20):
        batch = prefetcher.take()
        assert np.all(batch.data == index) and np.all(batch.labels == index)
        assert batch.state == (index + 1, b"r%d" % (index + 1))
        prefetcher.give_back(batch)
    prefetcher.stop()


def test_reads_ahead_no_further_than_its_depth():
    source = Counting()
    prefetcher = Prefetcher(source, 3)
    first = prefetcher.take()
    wait_until(lambda: source.highest == 3)
    time.sleep(0.02)
    assert source.highest == 3
    prefetcher.give_back(first)
    wait_until(lambda: source.highest == 4)
    prefetcher.stop()


def test_an_error_in_the_thread_reaches_the_taker_in_turn_and_stays():
    prefetcher = Prefetcher(Counting(fail_at=2), 4)
    for _ in range(2):
        prefetcher.give_back(prefetcher.take())
    for _ in range(2):
        with pytest.raises(DataError, match="batch 2 is bad"):
            prefetcher.take()
    assert not reading_threads()


def test_stop_ends_the_thread_and_the_next_take_starts_where_the_source_stands():
    source = Counting()
    prefetcher = Prefetcher(source, 2)
    prefetcher.give_back(prefetcher.take())
    prefetcher.stop()
    prefetcher.stop()
    assert not reading_threads()
    source.set_state(50, b"")
    assert prefetcher.take().state[0] == 51
    prefetcher.stop()


def test_a_dropped_prefetcher_ends_its_thread():
    prefetcher = Prefetcher(Counting(), 2)
    prefetcher.take()
    assert reading_threads()
    del prefetcher
    gc.collect()
    wait_until(lambda: not reading_threads())


def test_waits_are_counted_and_told_of_once_the_reader_had_time_to_get_ahead(capfd):
    prefetcher = Prefetcher(Counting(delay=0.005), 2)
    for _ in range(8):
        prefetcher.give_back(prefetcher.take())
    assert prefetcher.waits == 6
    assert capfd.readouterr().err.count("Waiting for data") == 1
    prefetcher.stop()


def test_a_process_that_is_still_reading_ends_at_once():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_prefetch import Counting\n"
        "from fcaffe.data import prefetch\nfrom fcaffe.data.prefetch import Prefetcher\n"
        "prefetch.END_TIMEOUT = 1000\n"  # nobody may need it; all batches would take 400 s
        "kept = Prefetcher(Counting(delay=0.4), 1000)\n"
        "kept.take()\n"
    )
    folder = __file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


class Copy:
    """Of a batch, made when somebody waits for it."""

    def __init__(self, batch, made):
        self.batch, self.made, self.done = batch, made, False

    def wait(self):
        if not self.done:
            self.made.append(self.batch.data.max())
        self.done = True


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_a_batch_is_not_written_before_its_copies_are_made(depth):
    prefetcher, made = Prefetcher(Counting(), depth), []
    for _ in range(10):
        batch = prefetcher.take()
        prefetcher.give_back(batch, [Copy(batch, made)])
    assert len(made) == 9 - min(2, depth - 1)  # the latest two may go on
    prefetcher.stop()
    assert made == list(range(10))


def test_batches_lie_in_the_memory_that_is_given():
    def allocate(shape):
        given.append(np.full(shape, 7, np.float32))
        return given[-1]

    given = []
    prefetcher = Prefetcher(Counting(), 1, allocate=allocate)
    batch = prefetcher.take()
    assert [array.shape for array in given] == [(2, 4, 5, 3), (2,)]
    assert batch.data.shape == (2, 3, 4, 5) and np.shares_memory(batch.data, given[0]) and batch.labels is given[1]
    prefetcher.stop()
