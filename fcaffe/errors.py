"""Everything that fcaffe raises on purpose.

A message is one line: what is wrong, where (file, line, layer, blob, shapes) and what to do about it.
Only `fcaffe.cli` turns these into a log line and an exit code.
"""

from typing import Any


class FcaffeError(RuntimeError):
    """Base of all errors that a user's input, files or machine can cause. Scripts for pycaffe catch RuntimeError."""


class ProtoError(FcaffeError):
    """A prototxt or binary message cannot be read as what it should be."""


class NetError(FcaffeError):
    """A net cannot be built or run: unknown layer, missing blob, wrong shape, bad parameter."""


class LayerError(NetError):
    """A NetError that says which layer of the net has it."""


class OutOfMemoryError(NetError, MemoryError):
    """Something does not fit into the memory that this process can have; found out before it is taken."""


class LayerMemoryError(LayerError, OutOfMemoryError):
    """The same, where one layer is what does not fit."""


class DataError(FcaffeError):
    """A database, list or record cannot be read."""


class SnapshotError(FcaffeError):
    """A model or solver state cannot be written, read or fitted to the net."""


class OtherRunError(SnapshotError):
    """A solver state is whole, but of a run that this one cannot continue: its net or type of solver is another."""


class SolverError(FcaffeError):
    """A solver's parameters contradict one another, or training cannot go on."""


class UsageError(FcaffeError):
    """Flags on the command line that do not go together."""


class RankError(Exception):
    """Carries an error of one of several ranks, its `__cause__`, to where it is told and ends all of them: the ranks of
    `world`, a fcaffe.parallel.world.World."""

    def __init__(self, world: Any) -> None:
        super().__init__()
        self.world = world


class LostRankError(FcaffeError):
    """MPI cannot reach another rank, and nobody knows more."""


class CallError(UsageError, TypeError):
    """Arguments that a function of the Python interface does not take; scripts for pycaffe catch TypeError."""


class NoSuchLayerError(UsageError, ValueError):
    """A layer that the net does not have, which pycaffe looks for in a list: scripts catch ValueError."""


class ArgumentError(UsageError, ValueError):
    """An argument of pycaffe's functions that does not fit; a ValueError, as in Caffe."""
