"""What is too small to share out is computed by one thread; the bits are those that any number of threads gives."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcaffe.engines import cpu_engine, find_onednn
from fcaffe.engines.onednn import calls, operation
from fcaffe.engines.onednn.dnnl import AVX, AVX512_BF16, AVX512_CORE
from fcaffe.engines.onednn.primitives import Primitive
from fcaffe.engines.onednn.threads import is_small
from fcaffe.engines.windows import Windows
from fcaffe.net import Context, Net
from fcaffe.net.node import Node
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net
from fcaffe.rng import CaffeRandom
from fcaffe.threads import SET_SCHEDULING, SLICE, SPINS

pytestmark = pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp")

ROOT = Path(__file__).parents[2]
MANY = 5  # threads, on however many CPUs
SEEDS = range(40)


def kernel() -> tuple[int, ...]:
    return tuple(map(int, platform.release().split("-")[0].split(".")[:2]))


@pytest.fixture
def many_threads(openmp: ctypes.CDLL):
    before = openmp.omp_get_max_threads()
    openmp.omp_set_num_threads(MANY)
    yield
    openmp.omp_set_num_threads(before)


@pytest.fixture
def seen(monkeypatch, openmp):
    """How many threads each call of a primitive or of sgemm had."""
    counts = []
    limited = calls.Calls._limited

    def watched(self, function):
        def run(*arguments):
            counts.append(openmp.omp_get_max_threads())
            return function(*arguments)

        return limited(self, run)

    monkeypatch.setattr(calls.Calls, "_limited", watched)
    return counts


def never(*_):
    return False


def share_out_everything(monkeypatch):
    for module in calls, operation:
        monkeypatch.setattr(module, "is_small", never)


def images(random, *shape):
    return np.moveaxis(random.standard_normal((shape[0], *shape[2:], shape[1]), np.float32), -1, 1)


def number(random, most):
    """Up to so much, small ones as often as large ones."""
    return int(2 ** random.uniform(0, np.log2(most)))


def assert_same(mine, other, message):
    """Bit for bit. Without AVX-512 some products of oneDNN round differently with another number of threads."""
    if cpu_engine().library.has(AVX512_CORE):
        assert mine.tobytes() == other.tobytes(), message
    else:
        scale = np.abs(np.nan_to_num(other)).max(initial=0)
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6 * scale, err_msg=message)


def convolutions(engine, random):
    n, c, size, m = number(random, 8), number(random, 64), random.integers(7, 30), number(random, 64)
    kernel, stride, group = int(random.choice([1, 3, 5])), int(random.integers(1, 3)), int(random.choice([1, 1, 2, c]))
    windows = Windows((kernel,) * 2, (stride,) * 2, (kernel // 2,) * 2, (1, 1))
    x = images(random, n, c * group, size, size)
    weights = random.standard_normal((m * group, c, kernel, kernel), np.float32)
    y = images(random, n, m * group, *windows.convolved((size, size)))
    engine.convolution_forward(x, weights, weights[:, 0, 0, 0].copy(), y, windows, group, relu=True)
    dy, dx = images(random, *y.shape), np.empty_like(x)
    engine.convolution_backward_data(dy, weights, dx, windows, group)
    return y, dx


def products(engine, random):
    """Some with more to add up than one thread does whole, some with a single row."""
    rows, inner, columns = (number(random, most) for most in (256, 4500, 256))
    rows = 1 if random.integers(3) == 0 else rows
    x, weights = (random.standard_normal(shape, np.float32) for shape in ((rows, inner), (columns, inner)))
    bias, y = random.standard_normal(columns, np.float32), np.empty((rows, columns), np.float32)
    engine.inner_product_forward(x, weights, bias, y, False)
    dx, dweights = np.empty_like(x), np.empty_like(weights)
    engine.inner_product_backward_data(y, weights, dx, False)
    engine.inner_product_backward_weights(x, y, dweights, False, add=False)
    return y, dx, dweights


def poolings(engine, random):
    """With windows that overlap and others."""
    n, c, size = number(random, 8), number(random, 96), int(random.integers(6, 40))
    windows = Windows((int(random.integers(2, 4)),) * 2, (2, 2), (0, 0), (1, 1))
    x = images(random, n, c, size, size)
    found = []
    spatial = windows.convolved((size, size))
    y, memory, dx = images(random, n, c, *spatial), np.zeros((n, c, *spatial), np.uint8), np.zeros_like(x)
    engine.max_pool_forward(x, y, memory, windows)
    engine.max_pool_backward(y, memory, dx, windows)
    found += [y.copy(), dx.copy()]
    engine.average_pool_forward(x, y, windows)
    engine.average_pool_backward(y, dx, windows)
    return *found, y, dx


def values(engine, random):
    """What is done value by value, or within a few values."""
    n, c, size = number(random, 8), 16 * number(random, 8), int(random.integers(3, 30))
    a, b, y = (images(random, n, c, size, size) for _ in range(3))
    found = []

    def take(operator, *arguments):
        operator(*arguments)
        found.append(y.copy())

    take(engine.relu_forward, a, y, 0.1)
    take(engine.relu_backward, a, b, y, 0.1)
    take(engine.weighted_sum, [a, b], [1, -0.5], y)
    take(engine.multiply, a, b, y)
    take(engine.copy, np.ascontiguousarray(a), y)
    memory = np.zeros((2 * n, *a.shape[1:]), np.float32)
    take(engine.lrn_forward, a, y, memory, 5, 1e-4, 0.75, 1.0)
    take(engine.lrn_backward, a, memory, b, y, 5, 1e-4, 0.75, 1.0)
    take(engine.scale_channels, a, y, a[0, :, 0, 0].copy(), b[0, :, 0, 0].copy())
    return found


def need_poolings() -> None:
    if not cpu_engine().library.has(AVX):
        pytest.skip("the processor has no AVX: poolings are array code")


@pytest.mark.parametrize("math", ["fp32", "bf16"])
@pytest.mark.parametrize("work", [convolutions, products, poolings, values])
def test_one_thread_gives_the_bits_of_many(work, math, many_threads, seen, monkeypatch):
    if math == "bf16" and not cpu_engine().library.has(AVX512_BF16):
        pytest.skip("the processor has no bfloat16")
    if work is poolings:
        need_poolings()
    by_rule = [work(cpu_engine(math), np.random.default_rng(seed)) for seed in SEEDS]
    assert {1, MANY} <= set(seen), "of these arrays some should be small and some not"
    seen.clear()
    share_out_everything(monkeypatch)
    for seed, ours in zip(SEEDS, by_rule, strict=True):
        theirs = work(cpu_engine(math), np.random.default_rng(seed))
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(mine, other, f"seed {seed}, result {index}")
    assert set(seen) == {MANY}


def test_what_is_small_goes_by_the_work_alone():
    rows = np.zeros((64, 1024), np.float32)
    assert is_small([rows, rows]) and not is_small([rows, rows, rows])
    assert is_small([rows, rows, rows], 10**6) and not is_small([rows, rows, rows], 10**7)
    assert not is_small([rows] * 9, 10**6)


def test_sums_that_threads_would_split_are_left_to_all(many_threads, seen):
    """Whatever their size: gradients of weights, and of poolings whose windows overlap."""
    need_poolings()
    engine, random = cpu_engine(), np.random.default_rng(1)
    x, dy = images(random, 2, 4, 8, 8), images(random, 2, 4, 8, 8)
    dweights = np.empty((4, 4, 3, 3), np.float32)
    engine.convolution_backward_weights(x, dy, dweights, Windows((3, 3), (1, 1), (1, 1), (1, 1)), 1, add=False)
    assert set(seen) == {MANY}
    seen.clear()
    engine.average_pool_backward(dy, x, Windows((3, 3), (1, 1), (1, 1), (1, 1)))
    assert set(seen) == {MANY}
    seen.clear()
    engine.average_pool_backward(dy, images(random, 2, 4, 16, 16), Windows((2, 2), (2, 2), (0, 0), (1, 1)))
    assert set(seen) == {1}


def test_others_find_their_threads_as_they_were(many_threads, openmp, monkeypatch):
    """After a small operation, after one that fails or is interrupted, and after one that cannot be made."""
    engine, x = cpu_engine(), images(np.random.default_rng(1), 1, 16, 32, 32)

    def rectify():
        engine.relu_forward(x, np.empty_like(x), 0)

    def interrupted(*_):
        raise KeyboardInterrupt

    for threads in MANY, 3:  # of a program that has changed its mind
        openmp.omp_set_num_threads(threads)
        rectify()
        assert openmp.omp_get_max_threads() == threads
    for failing, problem in (lambda *_: 5, calls.OneDnnError), (interrupted, KeyboardInterrupt):
        with monkeypatch.context() as patch, pytest.raises(problem):
            patch.setattr(engine.library, "execute", failing)
            rectify()
        assert openmp.omp_get_max_threads() == 3
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Primitive, "__init__", interrupted)
        engine.relu_forward(x[..., :16], np.empty_like(x[..., :16]), 0)
    assert openmp.omp_get_max_threads() == 3 and not engine.library.threads.for_one


def lenet(images):
    """In whole passes, with images in its input."""
    param = read_net(ROOT / "models" / "lenet" / "deploy.prototxt")
    param.state.phase = pb.TEST
    net = Net(param, Context(cpu_engine(), CaffeRandom(3), inference=True, whole_passes=True))
    random = np.random.default_rng(3)
    for parameter in net.parameters.owned:
        parameter.blob.mutable_data[...] = 0.05 * random.standard_normal(parameter.blob.shape)
    show(net, images)
    return net


def show(net, images):
    net.blob("data").reshape(*images.shape)
    net.blob("data").data[...] = images


def test_a_net_of_all_sizes_has_the_bits_of_a_fresh_one_with_one_thread(many_threads, seen, openmp):
    """Run, recorded and played, with batches for one thread and batches for all, and with NaN."""
    need_poolings()
    random = np.random.default_rng(1)
    net, played = lenet(np.zeros((1, 1, 28, 28), np.float32)), set[int]()
    for batch in 1, 64, 1, 2, 1, 7, 64:
        for number in range(6):
            given = random.standard_normal((batch, 1, 28, 28), np.float32)
            given[0, 0, 5:7] = np.nan if number == 4 else 0
            show(net, given)
            seen.clear()
            net.forward()
            assert set(seen) == ({1} if batch == 1 else {1, MANY})
            assert openmp.omp_get_max_threads() == MANY
            openmp.omp_set_num_threads(1)
            fresh = lenet(given)
            fresh.forward()
            openmp.omp_set_num_threads(MANY)
            assert_same(net.blob("prob").data, fresh.blob("prob").data, f"batch {batch}, {number}")
        if batch == 1:
            played |= {sum(isinstance(step, Node) for step in net.program.replay._steps)}
    assert len(played) == 1 and max(played) <= 2


def test_threads_of_a_script_spin_briefly():
    script = "import os\nfrom fcaffe.engines import cpu_engine\ncpu_engine()\nassert 'GOMP_SPINCOUNT' not in os.environ"
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    shown = {**kept, "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", script], env=shown, capture_output=True, text=True)
    assert done.returncode == 0 and f"GOMP_SPINCOUNT = '{SPINS}'" in done.stderr


@pytest.mark.skipif(
    platform.machine() not in SET_SCHEDULING or platform.system() != "Linux" or kernel() < (6, 12),
    reason="Linux grants slices from 6.12 on",
)
@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_BATCH"])
def test_threads_have_short_slices_unless_the_user_has_chosen_a_policy(policy):
    number = SET_SCHEDULING[platform.machine()]
    script = f"""
import ctypes, os, struct
import numpy as np
from fcaffe.engines import cpu_engine
call = ctypes.CDLL(None).syscall
call({number}, 0, struct.pack("=IIQiIQQQ", 48, os.{policy}, 0, 3, 0, 0, 0, 0), 0)  # the default slice, niceness 3
x = np.ones((64, 32, 32, 32), np.float32)
cpu_engine().relu_forward(x, x, 0)
for thread in map(int, os.listdir("/proc/self/task")):
    found = ctypes.create_string_buffer(48)
    call({number + 1}, thread, found, 48, 0)  # sched_getattr
    print(*struct.unpack("=IIQiIQQQ", found.raw)[3:6:2])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    nice, slices = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert nice == (3, 3)
    assert all((each == SLICE) == (policy == "SCHED_OTHER") for each in slices)
