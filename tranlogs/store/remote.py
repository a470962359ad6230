"""Any file system that fsspec knows as a store: s3://, gs://, hdfs://, memory:// ... The only module that imports fsspec.

An object that is there is taken for durable: these stores answer when it is so. How long a call may take is up to the file
system: S3's and its kin give up by themselves.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any, BinaryIO

import fsspec

from ..errors import CorruptObject, StoreRefused, StoreUnavailable, in_words
from .base import ObjectStatus, Store
from .part import Part

_BLOCK_BYTES = 1 << 20
_REFUSED = (PermissionError, NotADirectoryError, ImportError)


class RemoteStore(Store):
    """Objects are files below a folder (or a prefix of a bucket).

    Raises:
        StoreRefused: fsspec knows no such address, or a package that it needs for it is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = _without_password(url)
        try:
            # Listings must be looked up anew each time: others write there.
            options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
            self._files, root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, *_REFUSED) as error:
            raise StoreRefused(self.url, in_words(error)) from error
        except Exception as error:
            raise StoreUnavailable(self.url, in_words(error)) from error
        self._root = root.rstrip("/")

    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        part, path = Part(name, content, nbytes), self._path(name)
        try:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._files.open(path, "wb") as file:
                try:
                    shutil.copyfileobj(part, file, _BLOCK_BYTES)
                except BaseException:
                    with suppress(Exception):
                        file.discard()  # where it is published by closing it
                    raise
        except Exception as error:
            with suppress(Exception):
                self._files.rm_file(path)
            if part.error is not None:
                raise part.error from None
            raise self._translated(name, error) from error

    def get(self, name: str, into: BinaryIO) -> int:
        status = self.stat(name)
        if status is None:
            raise CorruptObject(f"{self.url}/{name}", "it is missing")
        done = 0
        try:
            file = self._files.open(self._path(name), "rb")
        except Exception as error:
            raise self._translated(name, error) from error
        with file:
            while block := self._read(name, file):
                done += into.write(block)
        if done != status.nbytes:
            raise CorruptObject(f"{self.url}/{name}", f"it ends after {done} of {status.nbytes} bytes")
        return done

    def stat(self, name: str) -> ObjectStatus | None:
        try:
            about = self._files.info(self._path(name))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._translated(name, error) from error
        return ObjectStatus(about["size"]) if about["type"] == "file" else None

    def names(self, prefix: str) -> list[str]:
        try:
            found = self._files.find(self._path(prefix) if prefix else self._root)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._translated(prefix, error) from error
        below = f"{self._root}/"
        names = (path.removeprefix(below) for path in found if path.startswith(below))
        return sorted(name for name in names if not prefix or name.startswith(f"{prefix.strip('/')}/"))

    def delete(self, name: str) -> None:
        try:
            self._files.rm_file(self._path(name))
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._translated(name, error) from error

    def _read(self, name: str, file: Any) -> bytes:
        try:
            block: bytes = file.read(_BLOCK_BYTES)
        except Exception as error:
            raise self._translated(name, error) from error
        return block

    def _translated(self, name: str, error: Exception) -> StoreRefused | StoreUnavailable:
        kind = StoreRefused if isinstance(error, _REFUSED) else StoreUnavailable
        return kind(self.url, f"{name}: {in_words(error)}" if name else in_words(error))

    def _path(self, name: str) -> str:
        parts = name.strip("/").split("/")
        assert all(part not in ("", ".", "..") for part in parts), f"{name!r} is no name of an object"
        return "/".join([self._root, *parts])


def _without_password(url: str) -> str:
    scheme, _, rest = url.rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
