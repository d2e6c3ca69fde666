"""Recomputing and shared memory where a device repeats recorded passes: the same bits as with each array apart."""

from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.engines.cuda.engine import CudaEngine
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, upgrade_net
from fcaffe.rng import CaffeRandom
from tests.net.test_recompute import NETS


def build(text: str, engine: CudaEngine, **context: bool) -> Net:
    param = parse_text(text, pb.NetParameter)
    upgrade_net(param, "net")
    param.state.phase = pb.TRAIN
    return Net(param, Context(engine, CaffeRandom(3), noise="counter", seed=5, whole_passes=True, **context))


def pass_over(net: Net, seed: int) -> list[np.ndarray]:
    random, engine = np.random.default_rng(seed), net.context.engine
    net.blob("x").data[...] = engine.from_numpy(random.standard_normal((6, 3, 16, 16)).astype(np.float32))
    net.blob("label").data[...] = engine.from_numpy(random.integers(0, 4, 6).astype(np.float32))
    net.context.begin_pass(seed, 0)
    net.parameters.clear_diffs()
    losses = [np.array(net.forward())]
    net.backward()
    return losses + [engine.to_numpy(p.blob.diff).copy() for p in net.parameters.owned]


@pytest.mark.parametrize("math", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETS)
def test_gradients_have_the_same_bits(
    name: str, math: str, cuda_engine: Callable[..., CudaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = cuda_engine(math=math)
    nets = [build(NETS[name](), engine, recompute=recompute) for recompute in (False, False, True)]
    monkeypatch.setattr(nets[0].arena, "follow", lambda program: None)
    for seed in range(4):
        apart, *others = (pass_over(net, seed) for net in nets)
        for found in others:
            for ours, theirs in zip(found, apart, strict=True):
                assert np.array_equal(ours, theirs)
    assert nets[2].arena.again


@pytest.mark.parametrize("recompute", [False, True])
def test_a_pass_layer_by_layer_in_between_changes_nothing(
    recompute: bool, cuda_engine: Callable[..., CudaEngine]
) -> None:
    engine = cuda_engine()
    plain, mixed = (build(NETS["residual"](), engine, recompute=recompute) for _ in range(2))
    for seed in range(9):
        mixed.debug_info = seed in (4, 5)  # by when the others are recorded
        for ours, theirs in zip(pass_over(mixed, seed), pass_over(plain, seed), strict=True):
            assert abs(ours - theirs).max() <= 2e-5 * max(1e-2, abs(theirs).max())
            assert mixed.debug_info or np.array_equal(ours, theirs)
