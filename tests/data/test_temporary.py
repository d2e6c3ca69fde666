import os
import stat

import pytest

from fcaffe.data import temporary
from fcaffe.data.temporary import TemporaryFolder


def let_go(folder):
    """What the system does when the owner ends."""
    os.close(folder._lock)


def test_the_folders_of_the_dead_are_removed_and_those_of_the_living_stay(tmp_path):
    prefix = str(tmp_path / "it.tmp")
    dead, living = TemporaryFolder(prefix), TemporaryFolder(prefix)
    (tmp_path / "it.tmp5-5x").mkdir()  # not one of ours
    open(os.path.join(dead.path, "file"), "w").close()
    let_go(dead)
    third = TemporaryFolder(prefix)
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, [living.path, third.path, "it.tmp5-5x"]))
    living.remove()
    third.remove()
    assert os.listdir(tmp_path) == ["it.tmp5-5x"]


def test_links_are_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "it.tmp1-1").symlink_to(tmp_path / "precious")
    TemporaryFolder(str(tmp_path / "it.tmp")).remove()
    assert sorted(os.listdir(tmp_path)) == ["it.tmp1-1", "precious"]


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    (tmp_path / "it.tmp1-1").mkdir()

    def none(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(temporary.fcntl, "flock", none)
    folder = TemporaryFolder(str(tmp_path / "it.tmp"))
    assert os.path.isdir(folder.path) and (tmp_path / "it.tmp1-1").exists()
    folder.remove()


@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_its_mode_is_that_of_a_folder_made_by_hand(tmp_path, mode):
    folder = TemporaryFolder(str(tmp_path / "it"), mode)
    (tmp_path / "hand").mkdir(mode)
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == stat.S_IMODE(os.stat(tmp_path / "hand").st_mode)
    folder.remove()
