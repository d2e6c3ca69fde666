"""The oneDNN engine beside the plain one, on arrays large enough for its own code, and laid out in several ways."""

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, cpu_engine, find_onednn
from fcaffe.engines.normalization import Normalizer
from fcaffe.engines.onednn.calls import OneDnnError
from fcaffe.errors import UsageError

pytestmark = [
    pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp"),
    pytest.mark.usefixtures("all_threads"),
]

PLAIN = NumpyEngine()


@pytest.fixture(scope="module")
def fast():
    return cpu_engine(name="onednn")


def array(*shape, seed=1, channels_last=True):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
    if channels_last and len(shape) > 3:
        values = np.moveaxis(np.ascontiguousarray(np.moveaxis(values, 1, -1)), -1, 1)
    return values


LAYOUTS = [(True, True), (True, False), (False, False)]


@pytest.mark.parametrize(("first", "second"), LAYOUTS)
def test_a_sum_of_two_has_the_bits_of_additions(fast, first, second):
    a, b = array(4, 32, 9, 10, channels_last=first), array(4, 32, 9, 10, seed=2, channels_last=second)
    a[0, 0], b[0, :2] = -0.0, -0.0
    a[1, 0, :, 0], b[1, 1, 0] = np.inf, -np.inf
    total = np.empty_like(a)
    fast.weighted_sum([a, b], [1.0, 1.0], total)
    assert total.tobytes() == (a + b).tobytes()


def test_without_the_library(monkeypatch):
    monkeypatch.setattr("fcaffe.engines.find_onednn", lambda: None)
    assert cpu_engine().name == "NumPy"
    for math, name in (("fp32", "onednn"), ("bf16", "")):
        with pytest.raises(UsageError, match="pip install onednn-cpu-gomp"):
            cpu_engine(math, name)


def test_a_library_that_is_none(tmp_path, monkeypatch):
    file = tmp_path / "libdnnl.so.3"
    file.write_bytes(b"no library")
    monkeypatch.setattr("fcaffe.engines.find_onednn", lambda: str(file))
    with pytest.raises(OneDnnError, match=r"cannot be used as oneDNN: .*--engine numpy"):
        cpu_engine()


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    "shape", [(2, 64, 12, 11), (16, 3, 31, 30), (2, 600, 5, 5), (3, 7, 5, 4, 9), (5, 17, 701)], ids=str
)
def test_steps_along_channels_round_as_numpy_does(fast, shape, channels_last):
    """Each on its own, so that whoever does them in another place gets the same bits."""
    x = array(*shape, channels_last=channels_last)
    mean, scale, shift = (array(shape[1], seed=seed) for seed in (2, 3, 4))

    def run(engine):
        made = [np.empty_like(x) for _ in range(3)]
        for relu in False, True:
            engine.batch_norm_apply(x, made[relu], Normalizer(mean, scale**2, 1e-5, relu=relu))
        engine.scale_channels(x, made[2], scale, shift)
        return made

    for ours, numpys in zip(run(fast), run(PLAIN), strict=True):
        np.testing.assert_array_equal(ours, numpys)
