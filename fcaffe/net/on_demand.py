"""On demand: what forward passes for a script leave out, and compute only when somebody looks at it.

A script may look at any blob after a pass, but looks at few. So a whole forward pass runs the rewritten nodes in an
arena, as the command line's inference does; the blobs that come to nothing by that are *left out*. Whoever looks at one
of them (`Storage.view`) lets the layers that make them run once more, one by one, from what the pass has kept:

    pass       data -> [conv+relu] -> pool -> fc      kept: data, fc; left out: conv, pool
    look       data -> conv -> relu -> pool           all that was left out is there, and the arena is gone
    next pass  what was looked at is kept

Every value has the bits that it would have layer by layer: only rules of rewriting that keep them are used, Dropout has
its mask, statistics are not added to again (`Layer.forward_again`), and what the layers start from is copied before
anybody may change it (`preserve`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from fcaffe.net.arena import Arena
from fcaffe.net.arithmetic import silent_arithmetic
from fcaffe.net.blob import Array, Blob
from fcaffe.net.graph import Graph
from fcaffe.net.host_views import host_views
from fcaffe.net.kept_blobs import is_kept, kept_storages, repeatable
from fcaffe.net.layer import Layer
from fcaffe.net.node import Node
from fcaffe.net.program import Program
from fcaffe.net.rewrite import rewrite
from fcaffe.net.storage import Storage

PATIENCE = 2  # whole passes for which a blob is kept after a script has looked at it
MOST_COPIED = 0.25  # of the bytes that are left out: what may have to be copied in each pass instead


class OnDemand:
    """The forward passes of one net for a script; `outer` are the blobs that come from outside or are read there.

    A net that has gone backward once runs layer by layer for good: gradients are wanted as they are, backward reads
    most of what forward has written, and what the weights were before an update would have to be kept.
    """

    def __init__(self, net: Graph, outer: Sequence[Blob], arena: Arena) -> None:
        self._net = net
        self._outer = outer
        self._given = [blob for node in net.nodes if not node.bottoms for blob in node.tops]
        self._arena = arena
        self._views = host_views(net.context.engine)
        self._views.follow(self)
        self._retired = any(node.layer.type == "Python" for node in net.nodes)  # whose code may look amid a pass
        self._looks = [self._views.looks] * PATIENCE  # at blobs, before each of the last passes
        self._shapes = [blob.shape for blob in self._given]  # when the last whole pass began
        self._blobs = [*net.blobs, *(blob for layer in net.layers for blob in layer.blobs)]
        self._made: set[Storage] = set()  # where the values of blobs are, at the last pass
        self._wanted: set[Storage] = set()
        self._program: Program | None = None  # which keeps these
        self._makers: list[Node] = []  # the nodes of the graph that make what it leaves out
        self._owing: set[Layer] = set()  # of nodes whose tops it keeps, but nothing that they save for backward
        self._saves_nothing: list[bool] = []  # for each of its nodes
        self._untouched: list[Storage] = []  # of what it leaves out, which it does not even write
        self._settled = -1, -1  # changes of blobs and of the arena, when it was made ready last
        self._most_copied = 0.0  # bytes
        self._survey()
        self._left_out: set[Storage] = set()  # of the last pass
        self._sources: set[Storage] = set()  # what its makers start from
        self._preserved: dict[Storage, Array] = {}  # the values of sources that may have changed since

    def forward(self, run: Callable[[Node], float], layer_by_layer: bool) -> float | None:
        """A whole pass, in which `run` runs a node and returns its loss. Returns the loss, or None if the net is to go
        layer by layer: as it is where shapes have changed since the last pass, since those that do so each time are not
        worth a new arena."""
        self.forget()
        looked = self._looks.pop(0)
        self._looks.append(self._views.looks)
        layer_by_layer |= self._retired or self._has_other_shapes()
        if self._settled[0] != Blob.changes:
            self._made = {blob._data for blob in self._net.blobs}  # one that has grown has other memory
        if layer_by_layer or not self._prepare(self._views.wanted(self._made, looked)):
            self._arena.release()
            return None
        try:
            loss = self._run_program(run)
        except BaseException:
            self._arena.release()
            raise
        grown = Blob.changes != self._settled[0] and self._versions != self._present_versions()  # by a layer that reads
        if grown:
            self._survey()
        self._left_out, self._sources = self._outputs, self._start
        self._mark()
        self.preserve(self._lent())
        if grown:
            self.complete()
        return loss

    def forget(self) -> None:
        """What the last pass has left out is wanted no more: a new one begins."""
        for storage in self._left_out:
            storage.compute = None
        self._left_out, self._sources, self._preserved = set(), set(), {}

    @silent_arithmetic
    def complete(self) -> None:
        """Compute what the last pass has left out; then all is as if it had gone layer by layer, for backward too."""
        if not self._sources:
            return
        for storage in self._left_out:
            storage.compute = None
        self._arena.release()
        try:
            with self._net.context.engine.other_weights(), self._as_in_the_pass():
                for node in self._makers:
                    tops = [_like(top) for top in node.tops] if node.layer in self._owing else node.tops
                    node.layer.forward_again(node.bottoms, tops)
        except BaseException:
            self._mark()  # so that nobody takes for values what is there now
            raise
        self.forget()

    def retire(self) -> None:
        """From now on all passes go layer by layer; the last one counts as if it had."""
        self.complete()
        self._retired = True

    def preserve(self, storages: Iterable[Storage]) -> None:
        """Before the values of these may change: copy those that are wanted as they were in the last pass."""
        for storage in storages:
            if storage in self._sources and storage not in self._preserved and storage.buffer is not None:
                self._preserved[storage] = storage.buffer.copy()

    def runs(self, blob: Blob) -> bool:
        """Whether it is one of this net's."""
        return any(blob is other for other in self._net.blobs)

    @contextlib.contextmanager
    def _as_in_the_pass(self) -> Iterator[None]:
        """In its body the sources have the values that they had in the last pass."""
        now = {storage: storage.buffer for storage in self._preserved}
        for storage, values in self._preserved.items():
            storage.replace(values)
        try:
            yield
        finally:
            for storage, buffer in now.items():
                storage.replace(buffer)

    def _has_other_shapes(self) -> bool:
        """Whether what the net is given has not the shapes of the last whole pass."""
        if self._settled[0] == Blob.changes:
            return False
        before, self._shapes = self._shapes, [blob.shape for blob in self._given]
        return before != self._shapes

    def _prepare(self, wanted: set[Storage]) -> bool:
        """Have a program that keeps these in its arena; False if that is not worth while."""
        is_ready = wanted == self._wanted and self._settled == (Blob.changes, self._arena.version)
        if not is_ready and (wanted != self._wanted or self._versions != self._present_versions()):
            self._program = None
        if self._program is None:
            self._make_program(wanted)
        assert self._program is not None
        if sum(storage.nbytes for storage in self._lent()) > self._most_copied:
            return False
        if not is_ready:
            for storage in self._untouched:
                storage.replace(None)
            self._arena.follow(self._program)
            self._settled = Blob.changes, self._arena.version
        return True

    def _make_program(self, wanted: set[Storage]) -> None:
        self._arena.release()
        net, self._wanted = self._net, wanted
        kept = kept_storages(net.nodes, {blob._data for blob in self._outer} | wanted)
        outer = [blob for blob in net.blobs if blob._data in kept]
        nodes = rewrite(net.nodes, inference=True, exact=True, kept=kept)
        self._program = Program(nodes, outer, net.parameters, inference=True)
        alone = {node.layer for node in nodes if not node.members}
        self._owing = repeatable(net.nodes, kept) & alone
        self._makers = [node for node in net.nodes if node.layer in self._owing or not is_kept(node, kept)]
        self._saves_nothing = [
            not node.bottoms or node.layer in self._owing or not is_kept(node, kept) for node in nodes
        ]
        self._survey()
        self._most_copied = MOST_COPIED * sum(storage.nbytes for storage in self._outputs)
        touched = {blob._data for node in nodes for blob in node.blobs}
        self._untouched = [storage for storage in self._outputs if storage not in touched]

    def _survey(self) -> None:
        """Find out anew where things lie, after shapes have changed."""
        self._versions = self._present_versions()
        self._outputs = {blob._data for node in self._makers if node.layer not in self._owing for blob in node.tops}
        read = {blob._data for node in self._makers for blob in (*node.bottoms, *node.layer.blobs)}
        self._start = read - self._outputs

    def _present_versions(self) -> list[int]:
        """Of all that the nodes read and write; one changes with a shape or a place in memory."""
        return [blob.version for blob in self._blobs]

    def _lent(self) -> list[Storage]:
        """What the makers start from, and a script may write at any moment."""
        return [storage for storage in self._views.lent() if storage in self._start]

    def _run_program(self, run: Callable[[Node], float]) -> float:
        """What runs again before backward need save nothing for it now."""
        assert self._program is not None
        context, loss = self._net.context, 0.0
        try:
            context.inference = True
            if all(self._saves_nothing) and self._program.recorded.play(self._arena.version):
                return loss
            for node, context.inference in zip(self._program.nodes, self._saves_nothing, strict=True):
                loss += run(node)
        finally:
            context.inference = False
        return loss

    def _mark(self) -> None:
        for storage in self._left_out:
            storage.compute = self.complete


def _like(blob: Blob) -> Blob:
    """Another one of the same kind."""
    return Blob(blob.xp, blob.shape, channels_last=blob._data.channels_last, dtype=blob.dtype)
