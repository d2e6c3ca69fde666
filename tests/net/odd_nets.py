"""Random nets that are legal but odd.

They have loss weights on any top, explicit Splits with in-place layers on their tops, layers of equal or missing names,
and layer types that a plugin derives from registered ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from fcaffe.layers.batch_norm import BatchNorm
from fcaffe.layers.concat import Concat
from fcaffe.layers.convolution import Convolution
from fcaffe.layers.eltwise import Eltwise
from fcaffe.layers.pooling import Pooling
from fcaffe.layers.scale import Scale
from fcaffe.net import Layer, registry
from tests.net.random_nets import RandomNet

WITHOUT_LOSS = {"Accuracy", "ArgMax", "Threshold", "Filter", "Python", "Reduction"}  # or with one anyway


def _doubled(kind: type[Layer]) -> type[Layer]:
    """A subclass whose tops are twice those of `kind`, and whose gradients are not."""

    def forward(self: Any, bottom: Any, top: Any) -> None:
        kind.forward(self, bottom, top)
        for blob in top[:1]:
            blob.data[...] *= 2

    return type(f"Doubled{kind.__name__}", (kind,), {"forward": forward})


PLUGIN = {kind.__name__: _doubled(kind) for kind in (BatchNorm, Concat, Convolution, Eltwise, Pooling, Scale)}


def register_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the length of a test: a test of all types counts the registered ones."""
    for kind, layer in PLUGIN.items():
        monkeypatch.setitem(registry._registry, f"Doubled{kind}", layer)


class OddNet(RandomNet):
    def _grow(self) -> None:
        if self.random.random() < 0.2:
            self._split()
        else:
            super()._grow()

    def _split(self) -> None:
        """A blob under two names, of which a layer in place overwrites one."""
        bottom, name = self._pick(), self._name("split")
        tops = [f"{name}_a", f"{name}_b"]
        self._write(name, "Split", [bottom], tops)
        for top in tops:
            self._made(top, self.shapes[bottom])
        if self.random.random() < 0.8:
            self._activation(self.random.choice(tops))

    def _write(self, name: str, kind: str, bottoms: list[str], tops: list[str], more: str = "") -> None:
        """Only noted: what becomes of a blob later says whether it may have a loss."""
        if not hasattr(self, "notes"):
            self.notes: dict[int, tuple[str, str, list[str], list[str], str]] = {}
        self.notes[len(self.layers)] = name, kind, bottoms, tops, more
        self.layers.append("")
        self.unread -= set(bottoms)

    def _finish(self) -> None:
        super()._finish()
        for index, (name, kind, bottoms, tops, more) in self.notes.items():
            weights = [self.random.choice([0, 0.02, 0.1]) for _ in tops] if self.random.random() < 0.15 else []
            later = [note for other, note in self.notes.items() if other > index]
            overwritten = any(set(tops) & {*note[2]} & {*note[3]} for note in later)
            if any(weights) and "Loss" not in kind and kind not in WITHOUT_LOSS and not overwritten:
                more += "".join(f" loss_weight: {weight}" for weight in weights)
            if kind in PLUGIN and self.random.random() < 0.1:
                kind = f"Doubled{kind}"
            name = self.random.choice([name] * 6 + ["same", ""])
            blobs = " ".join([f'bottom: "{blob}"' for blob in bottoms] + [f'top: "{blob}"' for blob in tops])
            named = f'name: "{name}"' if name else ""
            self.layers[index] = f'layer {{ {named} type: "{kind}" {blobs} {more} }}'
