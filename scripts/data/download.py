"""Fetching a data set's files from where its authors publish them."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Iterator

from fcaffe.errors import DataError
from fcaffe.output_files import replacing

TIMEOUT = 60  # seconds without an answer
BLOCK = 1 << 20


def download(url: str, path: str, sha256: str) -> None:
    """Fetch `url` into the file `path`, which appears only when it is complete and its SHA-256 is right."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    digest = hashlib.sha256()
    with replacing(path, "data set", DataError) as temporary:
        with open(temporary, "wb") as file:
            for block in _blocks(url, path):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != sha256:
            raise DataError(f"{url} is not the expected file (SHA-256 {digest.hexdigest()}, not {sha256}): try again")


def _blocks(url: str, path: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            while block := answer.read(BLOCK):
                yield block
    except (OSError, http.client.HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        raise DataError(
            f"cannot download {url} ({reason}): without a network, fetch it elsewhere and put it at {path}"
        ) from problem
