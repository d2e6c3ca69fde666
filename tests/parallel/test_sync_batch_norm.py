"""BatchNorm over the batch of several workers, with what stands behind it: in whole passes, layer by layer, alone."""

from __future__ import annotations

import pytest

from tests.engine_choice import ENGINES
from tests.parallel.conftest import needs_mpi, run_ranks

pytestmark = needs_mpi


@pytest.mark.parametrize(("name", "ranks"), [(ENGINES[0], 3), (ENGINES[0], 1), (ENGINES[-1], 2)])
def test_random_residual_nets(name: str, ranks: int) -> None:
    run_ranks(ranks, "norm_ranks.py", name, 8)
