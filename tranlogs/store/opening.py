"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import StoreRefused
from .base import Store
from .local import LocalStore


def open_store(url: str | os.PathLike[str]) -> Store:
    """A store for `file:///path` (or a plain path), `alluxio://HOST:PORT/path`, or whatever fsspec knows ("s3://...").

    Raises:
        StoreRefused: the address is none, or a package that it needs is missing.
    """
    text = os.fspath(url)
    parts = urlsplit(text)
    if "://" not in text:
        return LocalStore(Path(text).expanduser())
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreRefused(text, "a file store has no host; write file:///path")
        return LocalStore(Path(unquote(parts.path)))
    raise StoreRefused(text, f"no store is known for {parts.scheme}://")
