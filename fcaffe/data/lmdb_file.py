"""The file data.mdb of an LMDB, read page by page, each page checked before it is used.

liblmdb maps the file into memory and believes what it finds there: a damaged page ends the process by an assertion or a
segmentation fault, a file that is cut while it is read by a bus error. Here pages are read by system calls, and
whatever is wrong is an exception.

The layout is that of LMDB 0.9 on 64-bit machines, in the machine's byte order. A page begins with its own number, two
bytes of no meaning here, its kind, and two offsets, `lower` and `upper`. In branch and leaf pages the offsets of the
nodes follow, up to `lower`; the nodes lie from `upper` on. Pages 0 and 1 are meta pages; the one with the higher
transaction number says where the root of the tree of records is. A value too long for a leaf has pages of its own.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Iterator
from typing import NamedTuple

MAGIC, VERSION = 0xBEEFC0DE, 1
HEADER = struct.Struct("=QHHHH")  # page number, padding, kind, lower, upper
LONG_HEADER = struct.Struct("=QHHI")  # page number, padding, kind, number of pages
# Behind the header of a meta page: magic, version, address, map size; of the tree of free pages: page size, flags,
# depth, branch, leaf and overflow pages, entries, root; the same of the records' tree; last page, transaction.
META = struct.Struct("=IIQQ" + 2 * "IHHQQQQQ" + "QQ")
NODE = struct.Struct("=IHH")  # size of the value, flags, size of the key; a branch's: 48 bits of a page number
PAGE_NUMBER = struct.Struct("=Q")
BRANCH, LEAF, LONG, META_PAGE, KINDS = 0x01, 0x02, 0x04, 0x08, 0x6F
LONG_VALUE, NAMED_DATABASE = 0x01, 0x02  # flags of a node
REVERSED, SEVERAL_VALUES, BY_INTEGER = 0x02, 0x04, 0x08  # flags of a database
SMALLEST_PAGE, LARGEST_PAGE = 256, 1 << 16  # bytes
DEEPEST = 32  # levels of a tree, as in liblmdb
MOST_AT_ONCE = 16  # leaf pages that one system call reads

Record = tuple[bytes, bytes]  # key, value


class PageError(Exception):
    """What is wrong with a page, for a message that names the database."""


class Snapshot(NamedTuple):
    """Where the records lie as of one transaction. Keys that are `in_order` ascend as byte strings."""

    transaction: int
    root: int
    depth: int
    entries: int
    last_page: int
    page_size: int
    in_order: bool

    @property
    def bytes_needed(self) -> int:
        return (self.last_page + 1) * self.page_size


class PageFile:
    """An open data.mdb, for any number of threads; it is closed with the last reference to it, if not before."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._number)
        status = os.fstat(self._number)
        self.identity = (status.st_dev, status.st_ino)

    @property
    def size(self) -> int:
        return os.fstat(self._number).st_size

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes; a PageError if the file ends before."""
        content = os.pread(self._number, count, offset)
        while len(content) < count:  # the file ends here, or this was as much as the system reads at once
            more = os.pread(self._number, count - len(content), offset + len(content))
            if not more:
                raise PageError(f"data.mdb was cut short: it has {self.size} bytes, not {offset + count}")
            content += more
        return content

    def snapshots(self) -> tuple[Snapshot, Snapshot]:
        """Those of the last two transactions, the newest first."""
        first = self._snapshot(0)
        second = self._snapshot(first.page_size)
        return (first, second) if first.transaction > second.transaction else (second, first)

    def _snapshot(self, offset: int) -> Snapshot:
        """What the meta page at this offset says. It is read again until it is the same twice, since a writer may be
        changing it."""
        content = b""
        while content != (content := self.read(offset, HEADER.size + META.size)):
            pass
        kind = HEADER.unpack_from(content)[2]
        magic, version, _, _, page_size, *_ = META.unpack_from(content, HEADER.size)
        flags, depth, _, _, _, entries, root, last_page, transaction = META.unpack_from(content, HEADER.size)[-9:]
        if kind & KINDS != META_PAGE or magic != MAGIC:
            raise PageError("data.mdb does not begin as that of an LMDB")
        if version != VERSION:
            raise PageError(f"its format has the number {version}; only {VERSION} is read")
        if not SMALLEST_PAGE <= page_size <= LARGEST_PAGE or page_size & (page_size - 1):
            raise PageError(f"its pages would have {page_size} bytes")
        if flags & SEVERAL_VALUES:
            raise PageError("it was made for several values of a key (MDB_DUPSORT), which nets do not read")
        if entries and not (root <= last_page and 1 <= depth <= DEEPEST):
            raise PageError(f"the tree of its records would have {depth} levels from page {root} of {last_page} on")
        return Snapshot(transaction, root, depth, entries, last_page, page_size, not flags & (REVERSED | BY_INTEGER))


class Cursor:
    """Goes over the records of a snapshot in the order of their keys."""

    def __init__(self, file: PageFile, snapshot: Snapshot) -> None:
        self._file = file
        self._snapshot = snapshot

    def first(self) -> bool:
        """Go to the first record; False if there is none."""
        self._leaves = self._walk(self._snapshot.root, self._snapshot.depth)
        self._nodes: list[tuple[int, int, int]] = []  # of this leaf: where the value begins, its size, flags
        self._keys: list[bytes] = []
        self._index = -1
        self._gone_by = 0  # records in the leaves before
        return bool(self._snapshot.entries) and self.next()

    def next(self) -> bool:
        """Go to the next record; False if this was the last."""
        self._index += 1
        if self._index < len(self._nodes):
            return True
        self._gone_by += len(self._nodes)
        leaf = next(self._leaves, None)
        if leaf is None and self._gone_by == self._snapshot.entries:
            return False
        if leaf is None or self._gone_by >= self._snapshot.entries:
            raise PageError(f"its tree has not the {self._snapshot.entries} records that it should")
        self._index = 0
        last = self._keys[-1:]
        self._number, self._content = leaf
        self._nodes, self._keys = self._parse(*leaf)
        keys = last + self._keys
        if self._snapshot.in_order and sorted(keys) != keys:
            raise PageError(f"the keys in page {self._number} are not in order")
        return True

    def item(self) -> Record:
        """The record here."""
        start, size, flags = self._nodes[self._index]
        if not flags:
            return self._keys[self._index], self._content[start : start + size]
        return self._keys[self._index], self._file.read(self._offset_of_long(start, size), size)

    def check_length(self) -> None:
        """PageError if the file ends before a page of the snapshot. The last records come first: their pages are the
        likeliest to be missing."""
        for number, content in self._walk(self._snapshot.root, self._snapshot.depth, backwards=True):
            for start, size, flags in reversed(self._parse(number, content)[0]):
                if flags:
                    self._content = content
                    self._file.read(self._offset_of_long(start, size) + size - 1, 1)

    def _walk(self, number: int, levels: int, backwards: bool = False) -> Iterator[tuple[int, bytes]]:
        """The leaves below a page, and their numbers."""
        content = self._page(number, BRANCH if levels > 1 else LEAF)
        if levels == 1:
            yield number, content
            return
        children = []
        for offset in self._offsets(number, content):
            low, high, _ = NODE.unpack_from(content, offset)
            children.append(low | high << 32)
        if backwards:
            children.reverse()
        if levels > 2:
            for child in children:
                yield from self._walk(child, levels - 1, backwards)
            return
        for first, count in _runs(children):
            yield from zip(range(first, first + count), self._pages(first, count, LEAF), strict=True)

    def _page(self, number: int, kind: int) -> bytes:
        return self._pages(number, 1, kind)[0]

    def _pages(self, number: int, count: int, kind: int) -> list[bytes]:
        """So many pages from this one on."""
        last = number + count - 1
        if last > self._snapshot.last_page:
            raise PageError(f"it refers to page {last}, but ends with page {self._snapshot.last_page}")
        size = self._snapshot.page_size
        together = self._file.read(number * size, count * size)
        pages = [together[start : start + size] for start in range(0, count * size, size)]
        for index, content in enumerate(pages):
            found, _, found_kind, _, _ = HEADER.unpack_from(content)
            if found != number + index or found_kind & KINDS != kind:
                raise _damaged(number + index)
        return pages

    def _offsets(self, number: int, content: bytes) -> tuple[int, ...]:
        """Where the nodes of a page begin."""
        _, _, _, lower, upper = HEADER.unpack_from(content)
        count = (lower - HEADER.size) // 2
        if count < 1 or lower > upper or upper > len(content):
            raise _damaged(number)
        offsets = struct.unpack_from(f"={count}H", content, HEADER.size)
        if min(offsets) < upper or max(offsets) > len(content) - NODE.size:
            raise _damaged(number)
        return offsets

    def _parse(self, number: int, content: bytes) -> tuple[list[tuple[int, int, int]], list[bytes]]:
        """The nodes of a leaf and their keys."""
        nodes, keys = [], []
        end = len(content)
        for offset in self._offsets(number, content):
            size, flags, key_size = NODE.unpack_from(content, offset)
            start = offset + NODE.size + key_size
            if flags & NAMED_DATABASE:
                raise PageError("it holds named databases, of which nets read none")
            if flags & ~LONG_VALUE or start + (PAGE_NUMBER.size if flags else size) > end:
                raise _damaged(number)
            nodes.append((start, size, flags))
            keys.append(content[offset + NODE.size : start])
        return nodes, keys

    def _offset_of_long(self, start: int, size: int) -> int:
        """The offset in the file of a long value, behind the header of its first page; the number of that page is at
        `start`."""
        page_size = self._snapshot.page_size
        (number,) = PAGE_NUMBER.unpack_from(self._content, start)
        pages = -(-(LONG_HEADER.size + size) // page_size)
        if number + pages - 1 > self._snapshot.last_page:
            raise _damaged(self._number)
        offset = number * page_size
        found, _, kind, found_pages = LONG_HEADER.unpack(self._file.read(offset, LONG_HEADER.size))
        if found != number or kind & KINDS != LONG or found_pages != pages:
            raise _damaged(number)
        return offset + LONG_HEADER.size


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as the first of them and how many they are, at most MOST_AT_ONCE."""
    first, count = numbers[0], 0
    for number in numbers:
        if number != first + count or count == MOST_AT_ONCE:
            yield first, count
            first, count = number, 0
        count += 1
    yield first, count


def _damaged(number: int) -> PageError:
    return PageError(f"page {number} is damaged")
