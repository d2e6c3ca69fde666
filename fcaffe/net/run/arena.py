"""Arena: one block of memory for the activations and gradients of a program. Few of them are live at a time.

`fcaffe.net.run.layout` gives each storage an offset in it. Recomputed values may have another offset. Say c is written
by forward, read by the next layer, and recomputed before the backward of node 4:

    steps of    forward of c, and of its reader        backward of node 4
    offset 0    | c             |                      | dd            |
    offset 8    | d             |                      | c             |

So c has to move before the backward of node 4, and back at the START of the next forward pass: the storage gets another
part of the arena as its buffer.
"""

from __future__ import annotations

from typing import NamedTuple

from fcaffe.engines.memory import aligned_zeros
from fcaffe.net.blob import Array, Storage
from fcaffe.net.run.layout import Use, layout, uses
from fcaffe.net.run.program import Again, Program, bytes_of
from fcaffe.net.run.recompute import choose

START = -1  # all storages have their offsets of forward

Moves = dict[int, list[tuple[Storage, Array]]]  # before the backward of a node, or at the START of forward or backward


class Memory(NamedTuple):
    """Bytes that a net takes: its parameters, and the peak of one pass (activations, gradients and saved values)."""

    parameters: int
    peak: int


class Arena:
    """The memory of the current program. The layout is renewed when the program or the size of a storage changes.

    With `recompute`, `again` has the nodes whose forward runs again before the backward of a node.
    """

    def __init__(self, recompute: bool) -> None:
        self.recompute = recompute
        self.again: Again = {}
        self.version = 0  # changes with each new layout
        self._moves: Moves = {}
        self._unwritten: list[Storage] = []
        self._wanted: list[Use] = []  # what the layout is for
        self.storages: set[Storage] = set()  # that lie in the arena
        self._followed: tuple[Program, tuple[int, ...]] | None = None  # with the versions of its blobs
        self._chosen: tuple[tuple[Program, tuple[int, ...]], Again] | None = None  # the same way

    def follow(self, program: Program) -> None:
        """Give the storages of this program their offsets, unless they have those of the present shapes."""
        state = program, program.versions
        if state == self._followed:
            return
        program.trace()
        again = self.choose(program)
        wanted = uses(program, again)
        if self._followed is None or wanted != self._wanted:  # else blobs have changed their shape within their memory
            self.release()
            self._wanted, self._moves = wanted, share_memory(wanted)
            self.storages = {storage for use in wanted for storage in (use.storage, *use.others)}
        self._followed, self.again, self._unwritten = state, again, program.unwritten()

    def release(self) -> None:
        """Free the memory: each storage allocates memory of its own at the next access."""
        if self._followed is None:
            return
        for storage in self.storages:
            storage.replace(None)
        self.storages, self._wanted, self._moves, self._unwritten, self.again = set(), [], {}, [], {}
        self._followed = None
        self.version += 1

    def choose(self, program: Program) -> Again:
        """With `recompute`, the nodes to run again so that a pass takes the least memory. The search takes a second."""
        if program.inference or not self.recompute:
            return {}
        state = program, program.versions
        if self._chosen is None or self._chosen[0] != state:
            self._chosen = state, choose(program)
        return self._chosen[1]

    def move(self, when: int) -> None:
        """Move the recomputed storages to their offsets before the backward of a node, or at the START of a pass."""
        for storage, buffer in self._moves.get(when, ()):
            if storage.buffer is not buffer:
                storage.replace(buffer)

    def clear_unwritten(self) -> None:
        """Zero the gradients that a whole backward pass reads and no layer writes."""
        for storage in self._unwritten:
            if storage.buffer is not None:  # a new buffer is zero
                storage.write_zeros()


def share_memory(uses: list[Use]) -> Moves:
    """Let the storages share one new block of memory. Returns the moves."""
    offsets, end = layout(uses)
    for use in uses:
        for storage in (use.storage, *use.others):
            storage.replace(None)  # free the old block first
    if not uses:
        return {}
    arena = aligned_zeros(uses[0].storage.xp, end, "uint8")
    moves: Moves = {}
    for use, offset in zip(uses, offsets, strict=True):
        buffer = arena[offset : offset + use.storage.nbytes].view(use.storage.dtype)
        if use.before is None:
            for storage in (use.storage, *use.others):
                storage.replace(buffer)
        else:
            moves.setdefault(use.before, []).append((use.storage, buffer))
    movers = {storage for some in moves.values() for storage, _ in some}
    return moves | {START: [(storage, storage.buffer) for storage in movers]}


def memory_of(program: Program, again: Again, in_arena: bool) -> Memory:
    """The memory of a program in which these nodes run again, in separate buffers or in an arena."""
    parameters = {blob.data_storage for node in program.nodes for layer in node.layer.layers for blob in layer.blobs}
    data = {blob.data_storage for node in program.nodes for blob in node.blobs} - parameters
    if in_arena:
        peak = layout(uses(program, again))[1] + bytes_of(data - program.activations.keys())
    else:
        peak = bytes_of(data.union(program.gradients, program.internal))
    return Memory(bytes_of(parameters), peak)
