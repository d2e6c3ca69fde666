"""Which engine a test runs on."""

from __future__ import annotations

from fcaffe.engines import Engine, cpu_engine, find_onednn

ENGINES = ["onednn", "numpy"] if find_onednn() else ["numpy"]

chosen = ""  # the usual one; the fixture `on_each_engine` changes it


def engine() -> Engine:
    return cpu_engine(name=chosen)
