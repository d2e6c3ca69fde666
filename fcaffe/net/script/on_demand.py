"""On-demand values: blobs that a script's forward pass does not materialise, computed when the script reads them.

A script may read any blob after a pass, but reads few. So its whole forward passes run a fused program in an arena, as
the command line's inference does, and materialise the outer blobs. When the script reads another one, the layers of the
graph run once more, one by one:

    pass       data -> [conv+relu] -> pool -> fc      materialised: data, fc
    read conv  data -> conv -> relu -> pool -> fc'    all blobs have values; fc keeps its own, fc' is dropped

From then on passes materialise that blob too, until the script has not read it for RECENT passes. The second run has
the weights and inputs of the pass, which are copied before they change (`before_change`), and its noise, and changes no
state twice (`Node.forward_again`). Values differ by rounding at most.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import numpy as np

from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.blob import Array, Blob, Storage
from fcaffe.net.build.graph import Graph
from fcaffe.net.run.arena import Arena
from fcaffe.net.run.program import Program
from fcaffe.net.run.rewrite import Want
from fcaffe.net.script.host_arrays import host_views

RECENT = 20  # passes


class OnDemand:
    """The forward passes of one net for a script. From the first backward pass on, all materialise everything."""

    def __init__(
        self, net: Graph, outer: frozenset[Blob], arena: Arena, new_program: Callable[[Want], Program]
    ) -> None:
        self._net, self._arena, self._new_program = net, arena, new_program
        self._views = host_views(net.context.engine)
        self._given = [node for node in net.nodes if not node.is_repeatable]  # the second run reuses their tops
        self._recomputed = [node for node in net.nodes if node.is_repeatable]
        self._always = outer.union(blob for node in self._given for blob in node.tops)  # materialised by each pass
        self._read: dict[Blob, int] = {}  # the number of the last pass that found a blob read
        self._passes = 0
        self._visible = self._always  # materialised by the last pass
        self._program: Program | None = None  # the program that materialises these
        self._needs_all = self._overwrites_given()
        self._hidden: set[Storage] | None = None  # not materialised; None if the last pass has also saved for backward
        self._preserved: dict[Storage, Array] = {}  # copies from the last pass, of storages that may have changed since
        self._sources: set[Storage] = set()  # what the second run reads and does not write
        self._followed: tuple[Program, int] | None = None  # for which, and for what `Blob.changes`, `_follow` has run
        self._not_materialised: set[Storage] = set()  # by passes of that program
        self._unused: set[Storage] = set()  # by that program

    @staticmethod
    def suits(net: Graph) -> bool:
        """Whether the blobs are in host memory and no user code reads them amid a pass."""
        return net.context.engine.xp is np and not any(node.layer.traits.runs_user_code for node in net.nodes)

    def program(self) -> tuple[Program, bool]:
        """The program of the whole pass that begins now, and whether its blobs lie in the arena."""
        if self._needs_all:
            return self._whole_program, False
        self._passes += 1
        self._note_reads()
        visible = self._always.union(blob for blob, number in self._read.items() if number > self._passes - RECENT)
        if self._program is None or visible != self._visible:
            self._visible = visible
            self._program = self._new_program(Want(visible, gradients=False))
        return self._program, True

    def end_pass(self, program: Program) -> None:
        """A forward pass of this program is over."""
        if not program.inference:
            return
        if self._followed != (program, Blob.changes):
            self._follow(program)
        for storage in self._unused:
            storage.replace(None)
        self._hidden = self._not_materialised
        self._mark(self._hidden)
        for storage in self._views.exposed():
            self.before_change(storage)

    def forget(self) -> None:
        """A new pass begins: nobody will read what the last one has not materialised."""
        self._unmark()
        self._preserved = {}

    def complete(self) -> None:
        """Compute the blobs without values, as if the pass had gone layer by layer, for backward too."""
        hidden = self._unmark()
        if hidden is None:
            return
        self._arena.release()
        try:
            self._run_again(hidden)
        except BaseException:
            self._hidden = hidden
            self._mark(hidden)  # so that nobody reads the buffers as they are now
            raise
        self._preserved = {}

    def retire(self) -> None:
        """From now on passes materialise everything; the last one counts as if it had."""
        self.complete()
        self._needs_all = True

    def before_change(self, storage: Storage) -> None:
        """Copy the values if the second run reads them; see `Storage.change`."""
        if self._hidden is None or storage not in self._sources or storage in self._preserved:
            return
        if storage.buffer is not None:
            self._preserved[storage] = storage.buffer.copy()

    def _follow(self, program: Program) -> None:
        """Find out what this program does not materialise, and follow what the net reads or writes."""
        self._followed = program, Blob.changes
        visible = {blob.data_storage for blob in self._visible}
        self._not_materialised = {blob.data_storage for node in self._recomputed for blob in node.tops} - visible
        self._unused = self._not_materialised - {blob.data_storage for node in program.nodes for blob in node.blobs}
        self._sources = {blob.data_storage for node in self._recomputed for blob in node.layer.blobs}
        self._sources.update(blob.data_storage for node in self._given for blob in node.tops)
        for storage in self._sources | {blob.data_storage for blob in self._net.blobs}:
            storage.follow(self)

    @functools.cached_property
    def _whole_program(self) -> Program:
        return self._new_program(Want(None, gradients=True))

    def _note_reads(self) -> None:
        """Note the blobs that the script has read since the last pass, or whose arrays it holds, which stay live."""
        held, exposures = set(self._views.held()), []
        for blob in self._net.blobs:
            exposure = blob.data_storage.exposure
            if exposure is not None and (exposure.was_read or blob.data_storage in held):
                self._read[blob] = self._passes
                exposures.append(exposure)
        for exposure in exposures:
            exposure.was_read = False

    @silent_arithmetic
    def _run_again(self, hidden: set[Storage]) -> None:
        """Run the layers once more, into the hidden storages; what the others would get is dropped."""
        given = {blob.data_storage for node in self._given for blob in node.tops}
        written = {blob.data_storage for node in self._recomputed for blob in node.tops}
        dropped: dict[Storage, Array] = dict.fromkeys(written - hidden - given)
        context = self._net.context
        context.saves_for_backward = True
        with _replaced(dropped | self._preserved):
            for node in self._recomputed:
                node.forward_again()

    def _mark(self, hidden: set[Storage]) -> None:
        for storage in hidden:
            storage.compute = self.complete

    def _unmark(self) -> set[Storage] | None:
        hidden, self._hidden = self._hidden, None
        for storage in hidden or ():
            storage.compute = None
        return hidden

    def _overwrites_given(self) -> bool:
        """Whether a layer overwrites what the second run would need."""
        given = {blob.data_storage for node in self._given for blob in node.tops}
        writers = (node for node in self._recomputed if not node.layer.traits.aliases)
        return any(blob.data_storage in given for node in writers for blob in node.tops)


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
