"""Every layer on blobs of any number of axes and of no values: each engine gives what NumPy's does, or the same error.

An error names the layer, also if the shapes change after the layer has been set up.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from fcaffe import log
from fcaffe.engines import Engine, cpu_engine, find_onednn
from fcaffe.errors import LayerError, NetError, UsageError
from tests import engine_choice
from tests.cases import case, each_of
from tests.layers.example import Example
from tests.layers.examples import EXAMPLES
from tests.layers.test_contract import Case

Outcome = dict[str, np.ndarray] | str

SHAPES = [(2, 3, 4, 5, 1, 2)[:axes] for axes in range(7)] + [(2, 3, *(1,) * (axes - 3), 2) for axes in (12, 13, 32)]
SHAPES += [(1,), (1, 1, 1, 1), (0,), (0, 3), (2, 0), (0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0), (2, 0, 1)]
SHAPES += [(2, 3, 0, *(1,) * 10)]
OF_PRODUCTS = {"Convolution", "Deconvolution", "InnerProduct"}  # whose operators each math has of its own
NEAR = {"fp32": 2e-5, "bf16": 3e-2} | ({"winograd": 2e-4} if find_spec("numba") else {})  # of the largest value
LARGE = [(2,) * 13, (2, 3, 4, *(2,) * 9), (8192,), (2, 3, 4, 4, 4, 24)]  # that are not left to NumPy


def variants(example: Example) -> Iterator[Example]:
    """The first bottom has another shape, or all have it, or the others have as many axes of it as they had."""
    others = example.bottoms[1:]
    for shape in SHAPES + (LARGE if not others else []):
        found = {(shape, *others), (shape,) * (1 + len(others)), (shape, *(shape[: len(one)] for one in others))}
        text = example.text
        if len(shape) > 6:  # a kernel of 3 along each of 30 axes has 3^30 values
            text = re.sub(r"\bpad: \d", "", re.sub(r"\bkernel_size: \d", "kernel_size: 1", text))
        yield from (replace(example, text=text, bottoms=bottoms) for bottoms in sorted(found))


def outcome(kind: str, example: Example, before: Example | None, in_c_order: bool) -> Outcome:
    """What a pass writes, or its error. With `before` the layer is set up for the bottoms of another example."""
    try:
        made = Case(kind, before or example)
        if in_c_order:
            for blob in (*made.bottom, *made.top):
                blob.make_contiguous()
        made.write_bottoms(example)
        return made.run()
    except LayerError as problem:
        assert 'layer "it"' in str(problem), problem
        return str(problem).partition(" fails with ")[0]  # on the words of NumPy, which differ by version
    except NetError as problem:
        raise AssertionError(f"an error without a layer: {problem}") from problem


def same(found: Outcome, expected: Outcome, near: float) -> None:
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
        return
    assert found.keys() == expected.keys()
    for what, right in expected.items():
        largest = np.abs(right[np.isfinite(right)]).max(initial=1)
        np.testing.assert_allclose(found[what], right, rtol=0, atol=near * largest, err_msg=what)


def compare(
    kind: str, example: Example, engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch, every: int = 1
) -> None:
    """Engines, by their math, with NumPy's, for every nth variant and way of set-up, every other time in C order."""
    in_c_order = False
    with log.quiet(3), np.errstate(all="ignore"):
        ways = itertools.product(variants(example), (None, example))
        for odd, before in itertools.islice(ways, 0, None, every):
            monkeypatch.setattr(engine_choice, "chosen", "numpy")
            expected = outcome(kind, odd, before, in_c_order=False)
            in_c_order = in_c_order == bool(before)
            for math, engine in engines.items():
                monkeypatch.setattr(engine_choice, "chosen", lambda engine=engine: engine)
                with case(math, odd.bottoms, "reshaped" if before else ""):
                    same(outcome(kind, odd, before, in_c_order), expected, NEAR[math])


ODD = [(kind, example) for kind, examples in EXAMPLES.items() for example in examples if example.bottoms]


@each_of(ODD)
def test_any_shape(kind: str, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {}
    for math in (NEAR if kind in OF_PRODUCTS else ["fp32"]) if find_onednn() else []:
        with contextlib.suppress(UsageError):  # this processor has no bf16
            engines[math] = cpu_engine(math)
    compare(kind, example, engines, monkeypatch)
