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


def split_url(url: str) -> tuple[str, str]:
    """The address of the folder around, and the last name in it: "s3://bucket/runs/gpt?x=1" is "s3://bucket/runs?x=1", "gpt".

    Raises:
        StoreRefused: there is no name in it.
    """
    path, mark, query = url.partition("?")
    base, slash, name = path.rstrip("/").rpartition("/")
    if not name or base.endswith(":/") or name.endswith(":"):
        raise StoreRefused(url, "give the address of a run in it, URL/RUN")
    return (base or slash or ".") + mark + query, name
