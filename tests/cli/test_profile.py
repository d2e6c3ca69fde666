"""`fcaffe time --profile`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.cli.conftest import Result

pytestmark = pytest.mark.usefixtures("folder")


def test_every_layer_beside_the_peaks(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcaffe.tools.profile.SIDE", 64)
    monkeypatch.setattr("fcaffe.tools.profile.FLOATS", 1 << 16)
    result = run("time -model net.prototxt -iterations 2 -profile")
    assert result.code == 0
    _, head, *layers, _, peaks, whole = result.out.splitlines()
    assert head.split()[:2] == ["layer", "type"] and any(line.startswith("ip ") for line in layers)
    shares = [float(re.search(r"([\d.]+)%", line)[1]) for line in layers]
    assert sum(shares) == pytest.approx(100, abs=1) and shares == sorted(shares, reverse=True)
    assert all(re.search(r" (100|\d?\d)%$| cached$", line) for line in layers)
    assert re.match(r"This machine: \d+ GFLOP/s in matrix products, \d+ GB/s in copies", peaks)
    assert re.match(r"A pass forward and backward: [\d.]+ ms, \d+ GFLOP/s", whole)
