import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fcaffe.data import decoding
from fcaffe.data.decoding import Decoders, decoding_threads
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


def test_one_thread_per_cpu_of_this_process_within_reason(monkeypatch):
    for cpus, threads in ((1, 1), (2, 2), (500, decoding.MOST_THREADS)):
        monkeypatch.setattr(decoding, "available_cpus", lambda cpus=cpus: cpus)
        assert decoding_threads() == Decoders().threads == threads


def test_threads_that_load_opencv_at_once() -> None:
    """The first pictures of a WindowData layer are decoded by several threads; a module is known before it is whole."""
    pytest.importorskip("cv2", reason="the images extra (OpenCV) is not installed")
    threads = (
        "from concurrent.futures import ThreadPoolExecutor; from time import sleep; "
        "from fcaffe.data.images import opencv; "
        "look = lambda number: (sleep(number / 1000), hasattr(opencv(), 'IMREAD_COLOR'))[1]; "
        "print(*ThreadPoolExecutor(50).map(look, range(0, 200, 4)))"
    )
    done = subprocess.run([sys.executable, "-c", threads], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"] * 50, done.stderr[-2000:]
