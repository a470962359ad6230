"""From a URL to a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..base.config import STORE_COPIES_MAX
from ..base.errors import StoreRefused
from .base import Store
from .local import LocalStore

ALLUXIO_PORT = 39999  # of a proxy


def open_store(url: str | os.PathLike[str]) -> Store:
    """A store for `file:///path` (or a plain path), `alluxio://HOST:39999/path?replication=2`, or whatever fsspec knows
    ("s3://bucket/path"). Nothing is asked of it yet.

    Raises:
        StoreRefused: the address is none, or a package that it needs is missing.
    """
    text = os.fspath(url)
    if "://" not in text:
        if is_address(text):  # a slash too few, mostly
            raise StoreRefused(text, f"a store's address begins with SCHEME://; a folder of that name is ./{text}")
        return LocalStore(Path(text).expanduser())
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise StoreRefused(text, f"it is no address ({error})") from error
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreRefused(text, "a file store has no host; write file:///path")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "alluxio":
        return _alluxio(text, parts)
    if len(parts.scheme) < 2:  # fsspec takes a letter for a drive
        raise StoreRefused(text, "no store is known for it; write file:///path, alluxio://HOST/path, s3://bucket/path ...")
    try:
        from .fsspec_store import RemoteStore
    except ImportError as error:
        raise StoreRefused(text, f"it needs fsspec ({error}): pip install 'tranlogs[fsspec]'") from error
    return RemoteStore(text)


def is_address(text: str) -> bool:
    """Whether it begins as an address does, maybe with a slash too few; a folder of such a name is written ./NAME."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text) is not None


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


def _alluxio(text: str, parts: SplitResult) -> Store:
    form = f"write alluxio://HOST:{ALLUXIO_PORT}/path, with ?replication=2 for copies in the memory of two workers"
    try:
        host, port = parts.hostname, parts.port or ALLUXIO_PORT
        asked = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise StoreRefused(text, f"{error}; {form}") from error
    replication = asked.pop("replication", "1")
    if asked:
        raise StoreRefused(text, f"?{'&'.join(asked)} is no option that it knows; {form}")
    if host is None or parts.fragment or parts.username is not None:
        raise StoreRefused(text, form)
    if not replication.isdecimal():
        raise StoreRefused(text, f"replication={replication} is no number; {form}")
    copies = int(replication)
    if not 1 <= copies <= STORE_COPIES_MAX:
        raise StoreRefused(text, f"replication={copies}: from 1 to {STORE_COPIES_MAX}")
    try:
        from .alluxio import AlluxioStore
    except ImportError as error:
        raise StoreRefused(text, f"it needs alluxio-py ({error}): pip install 'tranlogs[alluxio]'") from error
    return AlluxioStore(f"[{host}]" if ":" in host else host, port, unquote(parts.path), copies=copies)
