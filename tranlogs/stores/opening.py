"""Opening of stores by their addresses."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..base.config import STORE_COPIES_MAX
from ..base.errors import StoreRefused
from .store import Store

ALLUXIO_PORT = 39999  # of a proxy


def open_store(url: str | os.PathLike[str]) -> Store:
    """Return the store at an address, without a connection to it.

    Addresses are `file:///path` (or a plain path), `alluxio://HOST:39999/path?replication=2`, and all addresses that fsspec
    knows, such as `s3://bucket/path`.

    Raises:
        StoreRefused: the address is malformed, or a package that it needs is missing.
    """
    from .local import LocalStore  # A command that reads a run needs no store.

    text = os.fspath(url)
    if "://" not in text:
        if is_address(text):  # most often a slash is missing
            raise StoreRefused(text, f"the address of a store starts with SCHEME://; for a folder of that name, write ./{text}")
        return LocalStore(Path(text).expanduser())
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise StoreRefused(text, f"the address is malformed ({error})") from error
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreRefused(text, "the address of a folder has no host: write file:///path")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "alluxio":
        return _alluxio(text, parts)
    if len(parts.scheme) < 2:  # fsspec takes a single letter for a drive
        raise StoreRefused(text, "no store has such an address: write file:///path, alluxio://HOST/path, s3://bucket/path ...")
    try:
        from .fsspec_store import FsspecStore
    except ImportError as error:
        raise StoreRefused(text, f"fsspec is required ({error}): pip install 'tranlogs[fsspec]'") from error
    return FsspecStore(text)


def is_address(text: str) -> bool:
    """Return True if a text starts as an address does, if need be with a slash too few; such a folder is written ./NAME."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text) is not None


def split_url(url: str) -> tuple[str, str]:
    """Split an address into that of the parent folder and the last name.

    "s3://bucket/runs/gpt?x=1" gives "s3://bucket/runs?x=1" and "gpt".

    Raises:
        StoreRefused: the address contains no name.
    """
    path, mark, query = url.partition("?")
    base, slash, name = path.rstrip("/").rpartition("/")
    if not name or base.endswith(":/") or name.endswith(":"):
        raise StoreRefused(url, "use the address of a run: URL/RUN")
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
        raise StoreRefused(text, f"unknown option ?{'&'.join(asked)}; {form}")
    if host is None or parts.fragment or parts.username is not None:
        raise StoreRefused(text, form)
    if not replication.isdecimal():
        raise StoreRefused(text, f"replication must be a number, got {replication}; {form}")
    copies = int(replication)
    if not 1 <= copies <= STORE_COPIES_MAX:
        raise StoreRefused(text, f"replication must be from 1 to {STORE_COPIES_MAX}, got {copies}")
    try:
        from .alluxio import AlluxioStore
    except ImportError as error:
        raise StoreRefused(text, f"alluxio-py is required ({error}): pip install 'tranlogs[alluxio]'") from error
    return AlluxioStore(f"[{host}]" if ":" in host else host, port, unquote(parts.path), copies=copies)
