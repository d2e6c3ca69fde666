"""On-demand values: blobs that a script's forward pass does not materialise, computed when the script reads them.

A script may read any blob after a pass, but reads few. So its whole forward passes run a fused program in an arena, as
the command line's inference does, and materialise the outer blobs and those that the script has been seen to read.
When it reads another one, the layers of the graph run once more, one by one:

    pass       data -> [conv+relu] -> pool -> fc      materialised: data, fc
    read conv  data -> conv -> relu -> pool -> fc'    all blobs have values; fc keeps its own, fc' is dropped

Then some passes materialise everything, so that a script that reads a different blob after each pass never waits for
much more than the layers one by one; what it reads meanwhile is materialised from then on.

The second run has the weights and inputs of the pass: they are copied before anybody may change them (`preserve`). It
has its noise, and adds to no statistics twice (`Layer.forward_again`). Values differ by rounding at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fcaffe.net.arena import Arena
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.blob import Array, Blob
from fcaffe.net.graph import Graph
from fcaffe.net.host_views import host_views
from fcaffe.net.node import Node
from fcaffe.net.program import Program
from fcaffe.net.rewrite import Want
from fcaffe.net.storage import Storage

FEWEST_FULL_PASSES = 8  # after the first read of a blob that was not materialised; after each further one twice as many
MOST_FULL_PASSES = 1024
MOST_COPIED = 0.25  # bytes that each pass may have to copy, as a part of the bytes that it does not materialise


class OnDemand:
    """The forward passes of one net for a script.

    From the first backward pass on, all passes materialise everything: gradients are read as they are, and backward
    reads most of what forward writes.
    """

    def __init__(
        self, net: Graph, outer: frozenset[Blob], arena: Arena, program_for: Callable[[Want], Program]
    ) -> None:
        self._net, self._arena, self._program_for = net, arena, program_for
        self._views = host_views(net.context.engine)
        self._views.follow(self)
        self._given = [node for node in net.nodes if _is_given(node)]
        self._recomputed = [node for node in net.nodes if not _is_given(node)]
        self._always = outer.union(blob for node in self._given for blob in node.tops)  # materialised
        self._needs_all = self._overwrites_given()  # so all passes materialise everything
        self._read: frozenset[Blob] = frozenset()  # further blobs, which the script reads
        self._full_passes = 0  # still to come, that materialise everything
        self._next_full_passes = FEWEST_FULL_PASSES
        self._reads_before = 0  # reads by user code before these passes
        self._shapes = self._given_shapes()  # when the last whole pass began
        self._changes = Blob.changes
        self._is_partial = False  # the last pass has hidden blobs, and has saved nothing for backward
        self._hidden: set[Storage] = set()  # without values now
        self._last_hidden: set[Storage] = set()  # after a pass of this program, since blobs changed last
        self._hidden_for: tuple[Program, int] | None = None
        self._program: Program | None = None  # which materialises what the script reads
        self._materialised: frozenset[Blob] | None = None
        self._held: tuple[set[Storage], int] = (set(), -1)  # by the script at the last pass
        self._last_sources: set[Storage] = set()
        self._sources_at = -1  # changes of blobs
        self._preserved: dict[Storage, Array] = {}  # the values of that pass, of storages that may have changed since

    @staticmethod
    def suits(net: Graph) -> bool:
        """Whether the blobs are in host memory and no user code reads them amid a pass."""
        return net.context.engine.xp is np and not any(node.layer.traits.runs_user_code for node in net.nodes)

    def program(self) -> tuple[Program, bool]:
        """The program of the whole pass that begins now, and whether its blobs lie in the arena."""
        if not (self._needs_all or self._has_other_shapes()):
            full = self._is_full_pass()
            program = self._program_for(Want(None, gradients=False)) if full else self._fused_program()
            exposed = self._exposed()
            if not exposed or _size(exposed) <= MOST_COPIED * _size(self._hidden_by(program)):
                return program, not full
        return self._program_for(Want(None, gradients=True)), False

    def end_pass(self, program: Program) -> None:
        """A forward pass of this program is over."""
        if not program.inference:
            return
        self._is_partial, self._hidden = True, self._hidden_by(program)
        for storage in self._hidden:
            storage.compute = self._complete_for_read
        self.preserve(self._exposed())

    def forget(self) -> None:
        """A new pass begins: nobody will read what the last one has not materialised."""
        self._clear_marks()
        self._preserved = {}

    def complete(self) -> None:
        """Compute the blobs without values. Then all is as if the pass had gone layer by layer, for backward too."""
        if not self._is_partial:
            return
        hidden = self._clear_marks()
        self._arena.release()
        try:
            self._run_again(hidden)
        except BaseException:
            self._is_partial, self._hidden = True, hidden
            for storage in hidden:  # so that nobody takes for values what is there now
                storage.compute = self._complete_for_read
            raise
        self._preserved = {}

    def retire(self) -> None:
        """From now on passes materialise everything; the last one counts as if it had."""
        self.complete()
        self._needs_all = True

    def preserve(self, storages: Iterable[Storage]) -> None:
        """Before the values of these storages may change: copy those that the second run reads."""
        if not self._is_partial:
            return
        sources = self._sources()
        for storage in storages:
            if storage in sources and storage not in self._preserved and storage.buffer is not None:
                self._preserved[storage] = storage.buffer.copy()

    def runs(self, blob: Blob) -> bool:
        """Whether it is one of this net's."""
        return any(blob is other for other in self._net.blobs)

    def _complete_for_read(self) -> None:
        self._full_passes, self._reads_before = self._next_full_passes, self._views.reads - 1
        self._next_full_passes = min(2 * self._next_full_passes, MOST_FULL_PASSES)
        self.complete()

    @silent_arithmetic
    def _run_again(self, hidden: set[Storage]) -> None:
        """Run the layers once more, into the hidden storages; what the others would get is dropped."""
        given = {blob.data_storage for node in self._given for blob in node.tops}
        written = {blob.data_storage for node in self._recomputed for blob in node.tops}
        dropped: dict[Storage, Array] = dict.fromkeys(written - hidden - given)
        context = self._net.context
        context.saves_for_backward = True
        with context.engine.other_weights(), _replaced(dropped | self._preserved):
            for node in self._recomputed:
                node.forward_again()

    def _clear_marks(self) -> set[Storage]:
        hidden, self._hidden, self._is_partial = self._hidden, set(), False
        for storage in hidden:
            storage.compute = None
        return hidden

    def _is_full_pass(self) -> bool:
        if not self._full_passes:
            return False
        self._full_passes -= 1
        if not self._full_passes:
            self._read = self._read_since(self._reads_before)
        return True

    def _fused_program(self) -> Program:
        """The program that materialises what the script reads, and the arrays that it holds, so that they stay live."""
        held = set(self._views.held())
        if (held, Blob.changes) != self._held:
            self._held = held, Blob.changes
            self._read |= {blob for blob in self._net.blobs if blob.data_storage in held}
        if self._program is None or self._materialised is not self._read:
            self._materialised = self._read
            self._program = self._program_for(Want(self._always | self._read, gradients=False))
        return self._program

    def _hidden_by(self, program: Program) -> set[Storage]:
        """The storages of recomputed blobs without values after a pass of this program."""
        if self._hidden_for != (program, Blob.changes):
            self._last_hidden = program.not_materialised(blob for node in self._recomputed for blob in node.tops)
            self._hidden_for = program, Blob.changes
            touched = {blob.data_storage for node in program.nodes for blob in node.blobs}
            for storage in self._last_hidden - touched:
                storage.replace(None)
        return self._last_hidden

    def _sources(self) -> set[Storage]:
        """What the second run reads and does not write."""
        if self._sources_at != Blob.changes:
            self._sources_at = Blob.changes
            self._last_sources = {blob.data_storage for node in self._recomputed for blob in node.layer.blobs}
            self._last_sources.update(blob.data_storage for node in self._given for blob in node.tops)
        return self._last_sources

    def _exposed(self) -> Sequence[Storage]:
        """The sources that a script may write at any moment."""
        exposed = self._views.exposed()
        sources = self._sources() if exposed else set()
        return [storage for storage in exposed if storage in sources]

    def _read_since(self, reads: int) -> frozenset[Blob]:
        storages = self._views.read_since((blob.data_storage for blob in self._net.blobs), reads)
        return frozenset(blob for blob in self._net.blobs if blob.data_storage in storages)

    def _has_other_shapes(self) -> bool:
        """Whether the shapes of what the net is given have changed. A net in which they do so each time is not worth
        a new arena."""
        if self._changes == Blob.changes:
            return False
        before, self._shapes, self._changes = self._shapes, self._given_shapes(), Blob.changes
        return before != self._shapes

    def _overwrites_given(self) -> bool:
        """Whether a layer overwrites what the second run would need."""
        given = {blob.data_storage for node in self._given for blob in node.tops}
        writers = (node for node in self._recomputed if not node.layer.traits.aliases)
        return any(blob.data_storage in given for node in writers for blob in node.tops)

    def _given_shapes(self) -> list[tuple[int, ...]]:
        return [blob.shape for node in self._given if not node.bottoms for blob in node.tops]


def _is_given(node: Node) -> bool:
    """Whether the second run takes its tops as they are: it brings data in, or would write other values."""
    return not (node.bottoms and node.layer.traits.repeatable)


def _size(storages: Iterable[Storage]) -> int:
    return sum(storage.nbytes for storage in storages)


@contextlib.contextmanager
def _replaced(buffers: dict[Storage, Array]) -> Iterator[None]:
    """In its body the storages have these buffers, or, for None, new ones."""
    before = {storage: storage.buffer for storage in buffers}
    for storage, buffer in buffers.items():
        storage.replace(buffer)
    try:
        yield
    finally:
        for storage, buffer in before.items():
            storage.replace(buffer)
