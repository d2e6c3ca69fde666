"""Which blobs a pass has to keep so that those that it leaves out can be made again; see `fcaffe.net.on_demand`."""

from __future__ import annotations

from collections.abc import Sequence

from fcaffe.net.layer import Layer
from fcaffe.net.node import Node
from fcaffe.net.recorded_forward import RecordedForward
from fcaffe.net.storage import Storage


def is_kept(node: Node, kept: set[Storage]) -> bool:
    """Whether all of its tops are."""
    return all(blob._data in kept for blob in node.tops)


def repeatable(nodes: Sequence[Node], kept: set[Storage]) -> set[Layer]:
    """Those whose tops are kept and which can save for backward later what they do not save now: by making their tops
    once more elsewhere, of bottoms which are then what they were."""
    last_writer = _last_writers(nodes)
    found = set()
    for index, node in enumerate(nodes):
        read, written = {blob._data for blob in node.bottoms}, {blob._data for blob in node.tops}
        lost = any(last_writer.get(storage, -1) > index for storage in read & kept) or read & written
        if read and not lost and is_kept(node, kept) and RecordedForward.repeats(node.layer):
            found.add(node.layer)
    return found


def _last_writers(nodes: Sequence[Node]) -> dict[Storage, int]:
    return {blob._data: index for index, node in enumerate(nodes) for blob in node.tops}


def kept_storages(nodes: Sequence[Node], wanted: set[Storage]) -> set[Storage]:
    """The storages that a program has to keep, beside those that are wanted, so that the others can be made again from
    them: what nodes write that cannot run again, all tops of a node or none, and what was made from values that have
    been overwritten since."""
    last_writer = _last_writers(nodes)
    kept = set(wanted)
    for node in nodes:
        if not (node.layer.traits.repeatable and node.bottoms):
            kept.update(blob._data for blob in node.tops)
    before = -1
    while len(kept) != before:
        before = len(kept)
        for index, node in enumerate(nodes):
            tops = {blob._data for blob in node.tops}
            read = {blob._data for blob in node.bottoms} & kept - tops
            if tops & kept or any(last_writer.get(storage, -1) > index for storage in read):
                kept |= tops
    return kept
