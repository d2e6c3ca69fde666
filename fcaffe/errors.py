"""The exceptions that fcaffe raises on purpose.

A message is one line: what is wrong, where (file, line, layer, blob, shapes) and what to do.
Only `fcaffe.cli` turns these into a log line and an exit code.
"""

from typing import Any

from fcaffe.shown import shown

LONGEST = 2000  # characters of a message


class FcaffeError(RuntimeError):
    """Base of all errors that a user's input, files or machine can cause. Scripts for pycaffe catch RuntimeError."""

    def __str__(self) -> str:
        text = shown(super().__str__())
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


class ProtoError(FcaffeError):
    """A prototxt or binary message cannot be parsed."""


class NetError(FcaffeError):
    """A net cannot be built or run: unknown layer, missing blob, wrong shape, bad parameter."""


class LayerError(NetError):
    """A NetError that names the layer."""


class OutOfMemoryError(NetError, MemoryError):
    """Something does not fit into this process's memory; raised before it is allocated."""


class LayerMemoryError(LayerError, OutOfMemoryError):
    """An OutOfMemoryError that names the layer."""


class DataError(FcaffeError):
    """A database, list or record cannot be read."""


class SnapshotError(FcaffeError):
    """A model or solver state cannot be written, be read, or be loaded into the net."""


class OtherRunError(SnapshotError):
    """A solver state is intact, but belongs to another net or type of solver."""


class SolverError(FcaffeError):
    """A solver's parameters contradict one another, or training cannot continue."""


class UsageError(FcaffeError):
    """Flags or arguments that are wrong or contradict one another."""


class RankError(Exception):
    """Wraps an error of one of several ranks, its `__cause__`, for the handler that prints it and ends all ranks.

    `world` is their fcaffe.jobs.world.World.
    """

    def __init__(self, world: Any) -> None:
        super().__init__()
        self.world = world


class LostRankError(FcaffeError):
    """MPI cannot reach another rank, for an unknown reason."""


class CallError(UsageError, TypeError):
    """Arguments that a function of the Python interface does not take; scripts for pycaffe catch TypeError."""


class NoSuchLayerError(UsageError, ValueError):
    """A layer that the net does not have, which pycaffe looks for in a list: scripts catch ValueError."""


class ArgumentError(UsageError, ValueError):
    """An argument of pycaffe's functions that does not fit; a ValueError, as in Caffe."""
