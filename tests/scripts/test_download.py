import hashlib
import os
import urllib.request

import pytest

from fcaffe.errors import DataError
from scripts.data.download import download

CONTENT = b"content" * 1000


@pytest.fixture
def url(tmp_path):
    (tmp_path / "published").write_bytes(CONTENT)
    return (tmp_path / "published").as_uri()


def test_fetches_a_file_into_a_new_folder(url, tmp_path):
    target = tmp_path / "new" / "file"
    download(url, str(target), hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT
    assert os.listdir(tmp_path / "new") == ["file"]


def test_another_content_is_refused_and_leaves_nothing(url, tmp_path):
    target = tmp_path / "new" / "file"
    with pytest.raises(DataError, match="is not the expected file"):
        download(url, str(target), "0" * 64)
    assert os.listdir(tmp_path / "new") == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/file", "file:///no/such/file"])
def test_without_a_network_it_says_where_to_put_the_file(url, tmp_path, monkeypatch):
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.setattr(urllib.request, "_opener", None)
    with pytest.raises(DataError, match=f"cannot download {url}.*put it at {tmp_path}/file"):
        download(url, str(tmp_path / "file"), "")
    assert os.listdir(tmp_path) == []
