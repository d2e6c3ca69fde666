"""LMDBs that other processes write to, that are damaged, or that are cut while they are read."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

from fcaffe.data import db_lmdb, lmdb_lock, open_database, write_lmdb
from fcaffe.data.backends import LMDB
from fcaffe.data.lmdb_file import PageFile
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
READING = "import lmdb; e = lmdb.open({!r}, readonly=True); t = e.begin(); print(t.id(), flush=True); input()"


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


def registered(folder):
    """The transactions in the lock file's table, oldest first."""
    status = os.stat(os.path.join(folder, "data.mdb"))
    lines = lmdb_lock._environments[status.st_dev, status.st_ino].readers().splitlines()[1:]
    return sorted(int(line.split()[2]) for line in lines if line.split()[2] != "-")


def append(folder, count=1, size=10, first=90_000_000):
    """As another process would: a process may not open an LMDB twice."""
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


def test_a_database_that_has_grown_beyond_the_map_is_opened_again_beside_the_first(folder):
    before = open_database(folder)
    append(folder, 20, 1 << 20)
    after = open_database(folder)
    assert (before.entries, after.entries) == (200, 220)
    assert before.read(200) == values(range(200)) == after.read(200)
    before.close()
    assert after.read(20)[-1] == (b"90000019", b"x" * (1 << 20))
    after.close()


def test_snapshots_are_registered_until_they_are_closed_however_the_file_grows(folder):
    opened = []
    for size in (1 << 20, 9 << 20, 1 << 20, 60 << 20):  # across what liblmdb maps by default, and what the writer did
        opened.append(open_database(folder))
        append(folder, 1, size)
    while opened:
        assert registered(folder) == [database.version()[1].transaction for database in opened]
        opened.pop().close()


def test_places_of_killed_readers_are_freed(folder):
    process = start(READING.format(folder))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    database = open_database(folder)
    environment = next(iter(lmdb_lock._environments.values()))
    lines = environment.readers().splitlines()
    assert len(lines) == 2 and lines[1].split()[0] == str(os.getpid())  # a heading, and we
    database.close()


@pytest.mark.parametrize("why", ["the folder cannot be written", "READERS_FULL", "lock.mdb"])
def test_without_a_lock_the_log_says_so_and_a_change_is_an_error(why, folder, monkeypatch, capfd):
    if why == "READERS_FULL":
        monkeypatch.setattr(lmdb_lock, "_open", lambda folder: (_ for _ in ()).throw(lmdb.ReadersFullError(why)))
    elif why == "lock.mdb":
        Path(folder, "lock.mdb").mkdir()
    else:
        os.chmod(folder, 0o555)
    database = open_database(folder)
    os.chmod(folder, 0o755)
    line = next(line for line in capfd.readouterr().err.splitlines() if "is read without a lock" in line)
    assert folder in line and why in line
    assert database.read(300)[:200] == values(range(200))
    if why != "lock.mdb":  # then nobody else can write either
        append(folder)
        with pytest.raises(DataError, match=r"another process has written to the LMDB .*lock\.mdb"):
            database.read(1)
    database.close()


def test_with_a_lock_the_log_says_nothing(folder, capfd):
    open_database(folder).close()
    assert "without a lock" not in capfd.readouterr().err
    assert Path(folder, "lock.mdb").exists()


def test_workers_agree_on_what_worker_0_reads(folder, monkeypatch):
    first = open_database(folder)
    append(folder, 3)
    second = open_database(folder)
    assert second.entries == 203
    second.agree_on(first.version())
    assert second.entries == 200 and second.read(201) == [*values(range(200)), *values([0])]
    version = first.version()
    monkeypatch.setattr(db_lmdb, "_host", lambda: "another")
    third = open_database(folder)
    with pytest.raises(DataError, match="has 203 records here, but 200 where worker 0"):
        third.agree_on(version)
    for database in (first, second, third):
        database.close()


def test_a_file_that_is_cut_while_it_is_read_is_an_error(folder):
    database = open_database(folder)
    database.read(10)
    os.truncate(Path(folder, "data.mdb"), 20_000)
    with pytest.raises(DataError, match=r"cannot be read \(data.mdb was cut short: it has 20000 bytes") as caught:
        database.read(200)
    assert folder in str(caught.value)
    database.close()


def test_free_pages_at_the_end_may_be_missing(tmp_path):
    content = bytearray(Path(GRAY, "data.mdb").read_bytes())
    for meta in (0, 4096):
        last = meta + 16 + 24 + 96
        content[last : last + 8] = (int.from_bytes(content[last : last + 8], "little") + 5).to_bytes(8, "little")
    Path(tmp_path, "data.mdb").write_bytes(content)
    database = open_database(str(tmp_path), LMDB)
    assert list(database) == list(open_database(str(GRAY)))
    database.close()


def damages(content, page, number):
    """So many variants of a file, each damaged in another way."""
    drawn = random.Random(number)
    pages = len(content) // page
    for _ in range(number):
        damaged = bytearray(content)
        first, second = (page * drawn.randrange(pages) for _ in range(2))
        kind = drawn.choice(["flip", "zero", "cut", "garbage", "header", "swap", "meta"])
        if kind == "flip":
            for place in drawn.sample(range(len(content)), drawn.randint(1, 20)):
                damaged[place] ^= 1 << drawn.randrange(8)
        elif kind == "zero":
            damaged[first : first + page] = bytes(page)
        elif kind == "cut":
            del damaged[drawn.randrange(len(content)) :]
        elif kind == "garbage":
            damaged[first : first + page] = drawn.randbytes(page)
        elif kind == "header":
            place = first + drawn.randrange(40)
            damaged[place : place + 4] = drawn.randbytes(4)
        elif kind == "swap":
            damaged[first : first + page], damaged[second : second + page] = (
                damaged[second : second + page],
                damaged[first : first + page],
            )
        else:
            damaged[drawn.randrange(2) * page + drawn.randrange(160)] ^= 1 << drawn.randrange(8)
        yield kind, bytes(damaged)


def test_damage_anywhere_is_an_error_that_names_the_database_or_is_in_a_value(tmp_path):
    """LMDB has no check sums: what is changed within a key or value is not found out here."""
    drawn = random.Random(1)
    records = [(b"%08d" % k, drawn.randbytes(drawn.choice([100, 800, 3000, 9000]))) for k in range(400)]
    write_lmdb(str(tmp_path / "db"), records)
    path = tmp_path / "db" / "data.mdb"
    errors = set()
    for kind, damaged in damages(path.read_bytes(), 4096, 250):
        path.write_bytes(damaged)
        try:
            database = open_database(str(path.parent))
            assert len(database.read(min(database.entries, 1000))) <= 1000
            database.read(1)  # the end of a round
            database.close()
        except DataError as problem:
            assert str(path.parent) in str(problem) and "\n" not in str(problem)
            errors.add(kind)
    assert errors >= {"zero", "cut", "garbage", "swap", "meta"}


def test_every_page_is_checked(tmp_path):
    """A page of zeros is found out, wherever it is, but for those behind the first one of a long value."""
    write_lmdb(str(tmp_path / "db"), [(b"%03d" % k, b"v" * 100) for k in range(300)])
    path = tmp_path / "db" / "data.mdb"
    content = path.read_bytes()
    file = PageFile(str(path))
    newest = file.snapshots()[0]
    for page in range(2, newest.last_page + 1):
        path.write_bytes(content[: page * 4096] + bytes(4096) + content[(page + 1) * 4096 :])
        with pytest.raises(DataError, match=f"page {page} is damaged"):
            database = open_database(str(path.parent))
            database.read(301)
    assert newest.last_page > 8 and newest.depth > 1
