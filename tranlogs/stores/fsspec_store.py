"""A file system of fsspec as a store: s3://, gs://, hdfs://, memory:// ... Only this module imports fsspec.

An object that exists counts as durable: these stores acknowledge a write when the object is durable. The file system decides
how long a call may take; S3 and similar stores have timeouts.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from typing import Any, BinaryIO

import fsspec

from ..base.errors import CorruptObject, StoreRefused, StoreUnavailable, error_text
from .store import BLOCK_BYTES, Content, ObjectStatus, Store, split_name

_REFUSED = (PermissionError, NotADirectoryError, ImportError)


class FsspecStore(Store):
    """Objects are files below a folder, or below a prefix of a bucket.

    The store connects at its first use, because some file systems (HDFS) connect when they are created, and hang if the server
    does not answer.

    Raises:
        StoreRefused: fsspec does not know the address, or a package that it needs is missing.
    """

    def __init__(self, url: str) -> None:
        self.url, self._address = _without_password(url), url
        self._lock = threading.Lock()
        self._connected: tuple[Any, str] | None = None
        try:
            for part in url.split("::"):
                fsspec.get_filesystem_class(part.partition("://")[0])
        except (ValueError, *_REFUSED) as error:
            known = "; write file:///path, alluxio://HOST/path, s3://bucket/path ..." if "Protocol" in str(error) else ""
            raise StoreRefused(self.url, error_text(error) + known) from error

    def put(self, name: str, content: Content) -> None:
        files, path = self._locate(name)
        try:
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            with files.open(path, "wb") as file:
                try:
                    shutil.copyfileobj(content, file, BLOCK_BYTES)
                except BaseException:
                    with suppress(Exception):
                        file.discard()  # `close` would publish the partial file
                    raise
        except Exception as error:
            with suppress(Exception):
                files.rm_file(path)
            if content.error is not None:
                raise content.error from None
            raise self._translate(name, error) from error

    def get(self, name: str, into: BinaryIO) -> int:
        status = self.stat(name)
        if status is None:
            raise CorruptObject(f"{self.url}/{name}", "it is missing")
        files, path = self._locate(name)
        done = 0
        try:
            file = files.open(path, "rb")
        except Exception as error:
            raise self._translate(name, error) from error
        with file:
            while block := self._read(name, file):
                done += into.write(block)
        if done != status.nbytes:
            raise CorruptObject(f"{self.url}/{name}", f"it ends after {done} of {status.nbytes} bytes")
        return done

    def stat(self, name: str) -> ObjectStatus | None:
        files, path = self._locate(name)
        try:
            about = files.info(path)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._translate(name, error) from error
        return ObjectStatus(about["size"]) if about["type"] == "file" else None

    def names(self, prefix: str) -> list[str]:
        files, root = self._root()
        try:
            found = files.find(self._locate(prefix)[1] if prefix else root)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._translate(prefix, error) from error
        below = f"{root}/"
        names = (path.removeprefix(below) for path in found if path.startswith(below))
        return sorted(name for name in names if not prefix or name.startswith(f"{prefix.strip('/')}/"))

    def delete(self, name: str) -> None:
        files, path = self._locate(name)
        try:
            files.rm_file(path)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._translate(name, error) from error

    def _root(self) -> tuple[Any, str]:
        """Return the file system, and the folder in it."""
        with self._lock:
            if self._connected is None:
                try:
                    # Listings must not be cached, because other processes write to the store, too.
                    files, root = fsspec.core.url_to_fs(self._address, use_listings_cache=False, skip_instance_cache=True)
                except Exception as error:
                    raise self._translate("", error) from error
                self._connected = files, root.rstrip("/")
            return self._connected

    def _locate(self, name: str) -> tuple[Any, str]:
        """Return the file system, and the path of an object in it."""
        files, root = self._root()
        return files, "/".join([root, *split_name(name)])

    def _read(self, name: str, file: Any) -> bytes:
        try:
            block: bytes = file.read(BLOCK_BYTES)
        except Exception as error:
            raise self._translate(name, error) from error
        return block

    def _translate(self, name: str, error: Exception) -> StoreRefused | StoreUnavailable:
        kind = StoreRefused if isinstance(error, _REFUSED) else StoreUnavailable
        return kind(self.url, f"{name}: {error_text(error)}" if name else error_text(error))


def _without_password(url: str) -> str:
    scheme, _, rest = url.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
