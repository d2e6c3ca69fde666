"""LMDBs that other processes write to, that a script of this process opens too, or that are damaged."""

import os
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

from fcaffe.data import open_database, write_lmdb
from fcaffe.data.backends import LMDB
from fcaffe.errors import DataError
from tests.conftest import GOLDEN

GRAY = GOLDEN / "interop" / "gray_lmdb"

# Appends records, and removes and writes again some of those before, so that pages get free, until it is told to stop.
APPENDING = """
import lmdb, select, sys
environment = lmdb.open(sys.argv[1], map_size=1 << 32)
number = 10_000
while not select.select([sys.stdin], [], [], 0)[0]:
    with environment.begin(write=True) as transaction:
        for _ in range(20):
            number += 1
            transaction.put(b"%08d" % number, bytes([number % 251]) * (500 + number % 7 * 1000))
        old = number % 200
        transaction.delete(b"%08d" % old)
        transaction.put(b"%08d" % old, bytes([old % 251]) * (500 + old % 7 * 1000))
    if number == 10_200:
        print("appending", flush=True)
"""


def values(numbers):
    """Records whose values can be told from their keys."""
    return [(b"%08d" % number, bytes([number % 251]) * (500 + number % 7 * 1000)) for number in numbers]


@pytest.fixture
def folder(tmp_path):
    write_lmdb(str(tmp_path / "db"), values(range(200)))
    return str(tmp_path / "db")


def start(code, *arguments):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes)
    assert process.stdout.readline()
    return process


def append(folder, count=1, size=10, first=90_000_000):
    """As another process would."""
    code = (
        "import lmdb, sys; folder, count, size, first = sys.argv[1], *map(int, sys.argv[2:])\n"
        "environment = lmdb.open(folder, map_size=1 << 32)\n"
        "for k in range(first, first + count):\n"
        "    with environment.begin(write=True) as t: t.put(b'%08d' % k, b'x' * size)\n"
    )
    subprocess.run([sys.executable, "-c", code, folder, str(count), str(size), str(first)], check=True, timeout=300)


def test_what_is_read_is_what_was_there_at_the_opening_while_another_process_appends(folder):
    with start(APPENDING, folder) as process:
        counts = []
        for _ in range(4):
            database, other = open_database(folder), open_database(folder)
            counts.append(database.entries)
            first = database.read(database.entries)
            assert first == values(int(key) for key, _ in first)
            for _ in range(3):
                time.sleep(0.05)  # in which pages are freed and written again
                assert database.read(len(first)) == first
            assert len({key for key, _ in first}) == len(first)
            assert list(other)[: len(first)] == first
            database.close()
            other.close()
        process.communicate("stop\n", timeout=300)
    assert process.returncode == 0
    assert counts == sorted(counts) and counts[-1] > counts[0]


def test_a_protected_folder_is_read_without_a_lock(folder):
    os.chmod(folder, 0o555)
    database = open_database(folder)
    assert database.read(300)[:200] == values(range(200))
    database.close()
    os.chmod(folder, 0o755)


HANDLES = [{"readonly": True, "lock": False}, {"readonly": True}, {}]  # arguments of lmdb.open


@pytest.mark.parametrize("script_first", [False, True])
@pytest.mark.parametrize("arguments", HANDLES)
def test_a_script_opens_a_database_beside_a_data_layer(arguments, script_first, folder):
    database = None if script_first else open_database(folder)
    with lmdb.open(folder, **arguments) as environment, environment.begin() as transaction:
        database = database or open_database(folder)
        assert list(transaction.cursor()) == values(range(200)) == database.read(200)
    assert database.read(200) == values(range(200)) == list(database)
    database.close()
    with lmdb.open(folder, **arguments) as environment, environment.begin() as transaction:
        assert list(transaction.cursor()) == values(range(200))


@pytest.mark.parametrize("size", [0, 100, 5000, 8192, 20_000, -1])
def test_a_file_that_is_cut_is_an_error(size, folder):
    path = Path(folder, "data.mdb")
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(DataError, match=r"cut short|cannot be read") as caught:
        open_database(folder)
    assert folder in str(caught.value)


def test_free_pages_at_the_end_may_be_missing(tmp_path):
    content = bytearray(Path(GRAY, "data.mdb").read_bytes())
    for meta in (0, 4096):
        last = meta + 16 + 24 + 96
        content[last : last + 8] = (int.from_bytes(content[last : last + 8], "little") + 5).to_bytes(8, "little")
    Path(tmp_path, "data.mdb").write_bytes(content)
    database = open_database(str(tmp_path), LMDB)
    assert list(database) == list(open_database(str(GRAY)))
    database.close()
