"""Files with wrong bytes in them: converted, or refused in one line that names the file, with nothing written."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import FcaffeError
from fcaffe.tools.convert import convert
from tests.conftest import GOLDEN

INTEROP = GOLDEN / "interop"
CASES = 40

# A file, and what it is converted to: through the classes that hold it, and not byte by byte.
FORMS = {
    "model": (INTEROP / "model_iter_8.caffemodel", ["x.npz", "y.h5"]),
    "npz": (INTEROP / "model_iter_8.caffemodel", ["x.npz", "y.safetensors"]),
    "safetensors": (INTEROP / "model_iter_8.caffemodel", ["x.safetensors", "y.caffemodel"]),
    "state": (INTEROP / "model_iter_8.solverstate", ["x.solverstate", "y.h5"]),
    "mean": (INTEROP / "mean_gray.binaryproto", ["x.binaryproto", "y.npy"]),
    "array": (INTEROP / "mean_gray.binaryproto", ["x.npy", "y.binaryproto"]),
}


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Cut off, without a piece, with a piece twice, or with some other bytes, most of them near its beginning."""
    one, two = sorted(dice.randrange(len(content)) for _ in range(2))
    kind = dice.choice(["cut off", "without", "twice", "bytes", "bytes", "bytes"])
    if kind == "cut off":
        return content[:one]
    if kind == "without":
        return content[:one] + content[two:]
    if kind == "twice":
        return content[: one + 20] + content[one:]
    made = bytearray(content)
    for _ in range(dice.choice([1, 2, 20])):
        made[dice.randrange(min(len(made), dice.choice([64, 300, len(made)])))] = dice.choice([0, 10, 34, 40, 255, 243])
    return bytes(made)


@pytest.mark.parametrize("form", FORMS)
def test_damage(form: str, tmp_path: Path) -> None:
    start, (middle, end) = FORMS[form]
    whole, source, target = tmp_path / middle, tmp_path / f"damaged{Path(middle).suffix}", tmp_path / end
    convert(str(start), str(whole))
    content = whole.read_bytes()
    refused = 0
    for case in range(CASES):
        source.write_bytes(damaged(content, random.Random(f"{form} {case}")))
        target.write_bytes(b"before")
        try:
            with np.errstate(all="ignore"):
                convert(str(source), str(target))
        except FcaffeError as problem:
            refused += 1
            assert str(source) in str(problem) and "\n" not in str(problem), f"case {case}"
            assert target.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 3, f"case {case}"
    assert refused > CASES / 4
