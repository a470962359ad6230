"""Alluxio 2.9 as a store, through the REST API of its proxy. Only this module imports alluxio-py.

Data that are written with ASYNC_THROUGH are in the memory of workers when `put` returns, and are copied to the under-store
later. Answers of the cluster are not proof (docs/alluxio.md):

* Closing a stream succeeds although its last block failed, and completes a short file if the writer failed. A failed write
  therefore closes its stream and deletes the file, and only `stat` shows what the store holds.
* Streams are identified by path, so that a stream that was left open can complete a later file of the same name. A name is used
  again only if its stream is known to be closed.
* A request to persist can be dropped, and a file that was LOST stays LOST although its workers come back. `request_durability`
  renames the file with persist=true, which puts it into the queue again. So an object has one of two paths, its name or its
  name and a suffix, and is looked up at both: the path need not be recorded, and a kill leaves the object at one of them.
* Most errors are UNKNOWN; only their text has the cause.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

import alluxio
import requests
import urllib3
from alluxio import exceptions
from requests.adapters import HTTPAdapter

from ..base.config import STORE_ANSWER_SECONDS, STORE_CONNECT_SECONDS
from ..base.errors import CorruptObject, StoreRefused, StoreUnavailable, TranLogsError, error_text
from .store import BLOCK_BYTES, Content, ObjectStatus, Store, split_name

_T = TypeVar("_T")

_NETWORK = (exceptions.HTTPError, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_FOREIGN = (*_NETWORK, exceptions.AlluxioError, ValueError, KeyError, TypeError)  # the last three: a malformed answer
_REFUSED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnimplementedError,
    exceptions.InvalidArgumentError,
)

REST_IS_OFF = (
    "expected Alluxio's REST API, got another answer; the API is off by default since 2.9.3: set "
    "alluxio.proxy.s3.v2.version.enabled=false and alluxio.proxy.s3.v2.async.processing.enabled=false, and restart the proxy"
)
_FINISHED_SECONDS = 1.0  # after which a file that is not complete was never finished
_SUFFIX = "~elsewhere"  # suffix of an object's second path
_PERSISTING_FOLDER = ".alluxio_ufs_persistence/"  # where Alluxio writes files while it persists them
_SYNC_NOW = {"syncIntervalMs": 0}  # read the under-store now


class AlluxioStore(Store):
    """A folder of Alluxio as a store. An object is a file below the folder.

    Args:
        root: the folder, with "/" between its parts.
        copies: number of workers that should hold each object in memory before a write returns (replication=N in the URL). If
            there are fewer workers, fewer copies are made, as `stat` shows.
        write_type: Alluxio's write type. The module's description applies to ASYNC_THROUGH only.
    """

    def __init__(
        self,
        host: str,
        port: int,
        root: str,
        *,
        copies: int = 1,
        answer_seconds: float = STORE_ANSWER_SECONDS,
        write_type: str = "ASYNC_THROUGH",
    ) -> None:
        self._root = "/" + root.strip("/")
        self.url = f"alluxio://{host}:{port}{quote(self._root)}" + (f"?replication={copies}" if copies > 1 else "")
        self.copies_wanted = copies
        self._address = host, port
        self._seconds = STORE_CONNECT_SECONDS, answer_seconds
        self._write_type = write_type
        self._idle: list[Any] = []  # clients that are not in use; two threads must not use the same one
        self._lock = threading.Lock()

    # The interface.

    def put(self, name: str, content: Content) -> None:
        for copies in range(self.copies_wanted, 0, -1):
            content.rewind()
            try:
                return self._write(name, content, copies)
            except StoreUnavailable as error:
                if content.error is not None:
                    raise content.error from None
                if copies == 1 or not isinstance(error, _TooFewWorkers):
                    raise
        raise AssertionError("copies must be at least 1")

    def get(self, name: str, into: BinaryIO) -> int:
        path, about = self._find(name)
        end = time.monotonic() + _FINISHED_SECONDS
        while about is not None and not about.completed and time.monotonic() < end:  # a writer has closed it a moment ago
            time.sleep(0.05)
            path, about = self._find(name)
        if about is None:
            raise CorruptObject(f"{self.url}/{name}", "it is missing")
        if not about.completed:
            raise CorruptObject(f"{self.url}/{name}", "writing it was never finished")
        if _is_lost_for_good(self._status(about)):  # Alluxio would try to read it for seconds.
            raise CorruptObject(f"{self.url}/{name}", "the store has lost it")
        done = 0
        try:
            with closing(self._blocks(name, path)) as blocks:
                for block in blocks:
                    done += len(block)
                    into.write(block)
        except StoreUnavailable as error:
            # If no worker holds a block, the proxy answers with a page that is not JSON.
            is_answer = isinstance(error.__cause__, requests.JSONDecodeError) or not isinstance(error.__cause__, _NETWORK)
            if is_answer and _is_nowhere(self.stat(name)):
                raise CorruptObject(f"{self.url}/{name}", "the store has lost it") from None
            raise
        if done != about.length:
            raise CorruptObject(f"{self.url}/{name}", f"it ends after {done} of {about.length} bytes")
        return done

    def stat(self, name: str) -> ObjectStatus | None:
        return self._status(self._find(name)[1])

    def _status(self, about: Any) -> ObjectStatus | None:
        if about is None:
            return None
        state = about.persistence_state.name  # the enum that wraps it cannot be compared
        holders = [{at.worker_address.host for at in block.block_info.locations} for block in about.file_block_infos]
        return ObjectStatus(
            about.length,
            is_complete=about.completed,
            is_durable=about.completed and about.persisted and state == "PERSISTED",
            copies=min(map(len, holders)) if holders else 0 if about.length else self.copies_wanted,
            is_lost=state == "LOST",
            is_forgotten=about.completed and state == "NOT_PERSISTED",
        )

    def names(self, prefix: str) -> list[str]:
        # Only by reading the under-store each time can objects be seen that another cluster wrote.
        options = _Options(recursive=True, loadMetadataType="ALWAYS", commonOptions=_SYNC_NOW)
        path = self._path(prefix) if prefix else self._root
        try:
            found = self._call_twice(prefix, lambda client: client.list_status(quote(path), options))
        except _NotThere:
            return []
        below = self._root.rstrip("/") + "/"
        files = (about.path.removeprefix(below) for about in found if not about.folder and about.path != path)
        return sorted({name.removesuffix(_SUFFIX) for name in files if not name.startswith(_PERSISTING_FOLDER)})

    def delete(self, name: str) -> None:
        for path in self._paths(name):
            with suppress(_NotThere):
                self._call_twice(name, partial(_delete, path=quote(path)))
                break

    def request_durability(self, name: str) -> None:
        path, about = self._find(name)
        status = self._status(about)
        if status is None or status.is_durable or not status.is_complete or _is_lost_for_good(status):
            return
        fresh = next(place for place in self._paths(name) if place != path)
        try:
            with self._client(name) as client:
                client.rename(quote(path), fresh, _Options(persist=True))
        except StoreUnavailable:  # The rename may have been done nevertheless.
            if self._find(name)[0] != fresh:
                raise

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for client in idle:
            client.session.close()

    # Reading and writing.

    def _write(self, name: str, content: Content, copies: int) -> None:
        path = quote(self._path(name))
        options = _Options(recursive=True, writeType=self._write_type, replicationDurable=copies, persistenceWaitTime=0)
        with self._client(name) as client:
            stream = client.create_file(path, options)
            try:
                if content.nbytes:
                    with closing(client.write(stream)) as writer:
                        sent = writer.write(content)
                    if sent != content.nbytes:
                        raise ValueError(f"expected {content.nbytes} bytes to be accepted, got {sent}")
                client.close(stream)
            except BaseException as error:
                is_undone = self._undo(name, stream)
                if not is_undone and isinstance(error, _FOREIGN):  # This name must not be used again.
                    raise StoreUnavailable(self.url, f"{name}: {_describe(error)}; the file may still exist") from error
                raise

    def _undo(self, name: str, stream: int) -> bool:
        """Undo a failed write: close its stream, which may complete a short file, and delete that file.

        Returns:
            True if the file does not exist any more.
        """
        try:
            with self._client(name) as client:
                with suppress(exceptions.NotFoundError):
                    client.close(stream)
                client.delete(quote(self._path(name)))
        except _NotThere:
            pass
        except TranLogsError:
            return False
        return True

    def _blocks(self, name: str, path: str) -> Generator[bytes]:
        with self._client(name) as client:
            stream = client.open_file(quote(path))
            try:
                with closing(client.read(stream)) as reader:
                    while block := reader.read(BLOCK_BYTES):
                        yield block
            finally:
                with suppress(*_FOREIGN):  # the proxy closes streams that are left open
                    client.close(stream)

    # Calls.

    def _find(self, name: str) -> tuple[str, Any]:
        """Return the path of an object, and Alluxio's information about it.

        The information is None if the object is neither in Alluxio nor in the under-store.
        """
        places = self._paths(name)
        for options in (None, _Options(commonOptions=_SYNC_NOW)):
            for path in places:
                with suppress(_NotThere):
                    about = self._call_twice(name, partial(_get_status, path=quote(path), options=options))
                    return path, None if about.folder else about
        return places[0], None

    def _paths(self, name: str) -> tuple[str, str]:
        """Return the two possible paths of an object."""
        path = self._path(name)
        return path, path + _SUFFIX

    def _call_twice(self, name: str, call: Callable[[Any], _T]) -> _T:
        """Make a call, and repeat it after a network error: a closed connection is noticed only when it is used."""
        try:
            with self._client(name) as client:
                return call(client)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, _NETWORK):
                raise
        with self._client(name) as client:
            return call(client)

    @contextmanager
    def _client(self, name: str) -> Iterator[Any]:
        """Yield a client for this block alone, and translate the errors of the block.

        Raises:
            StoreRefused, StoreUnavailable, _NotThere, _TooFewWorkers
        """
        try:
            with self._lock:
                client = self._idle.pop() if self._idle else None
            if client is None:
                client = self._connect()
            try:
                yield client
            except exceptions.AlluxioError:
                self._give_back(client)
                raise
            except BaseException:
                client.session.close()  # The connection may hold a part of an answer.
                raise
            self._give_back(client)
        except _FOREIGN as error:
            raise self._translate(name, error) from error

    def _give_back(self, client: Any) -> None:
        with self._lock:
            self._idle.append(client)

    def _connect(self) -> Any:
        client = alluxio.Client(*self._address, timeout=self._seconds)
        client.session.trust_env = False  # ignore the environment's proxy and .netrc
        client.session.mount("http://", _TimeoutAdapter(self._seconds))
        # If the REST API is off, calls answer 200 with no content, so that some would look as if they had succeeded.
        try:
            is_rest = client.exists("/") is True
        except ValueError:
            is_rest = False
        if not is_rest:
            client.session.close()
            raise StoreRefused(self.url, REST_IS_OFF)
        return client

    def _translate(self, name: str, error: BaseException) -> TranLogsError:
        words = f"{name}: {_describe(error)}" if name else _describe(error)
        if isinstance(error, exceptions.NotFoundError):
            return _NotThere(self.url, words)
        if isinstance(error, _REFUSED):
            return StoreRefused(self.url, words)
        if isinstance(error, exceptions.AlluxioError) and "Not enough workers" in error.message:
            return _TooFewWorkers(self.url, words)
        return StoreUnavailable(self.url, words)

    def _path(self, name: str) -> str:
        if "?" in name or "\\" in name:  # Alluxio takes a '?' for the end of a path, and a backslash for a "/"
            raise StoreRefused(self.url, f"{name!r}: the name of an object in Alluxio must not contain '?' or a backslash")
        if name.endswith(_SUFFIX):
            raise StoreRefused(self.url, f"{name!r}: the name of an object must not end with {_SUFFIX}")
        return "/".join([self._root.rstrip("/"), *split_name(name)])


def _is_lost_for_good(status: ObjectStatus | None) -> bool:
    """Return True if the cluster calls an object lost, and no worker holds it."""
    return status is not None and status.is_lost and not status.copies


def _is_nowhere(status: ObjectStatus | None) -> bool:
    """Return True if neither a reachable worker nor the under-store holds the object."""
    return status is None or status.is_lost or (not status.is_durable and not status.copies)


def _get_status(client: Any, path: str, options: _Options | None) -> Any:
    return client.get_status(path, options)


def _delete(client: Any, path: str) -> None:
    client.delete(path)


def _describe_connection(text: str) -> str:
    """Return the useful part of an error message that requests, urllib3 and the system have composed."""
    if "BadStatusLine" in text:
        return "it does not speak HTTP"
    if "NameResolutionError" in text or "Name or service not known" in text or "name resolution" in text:
        return "its host name cannot be resolved"
    refused = re.search(r"\[Errno \d+\] [A-Za-z ]+", text)
    return refused.group().strip() if refused else " ".join(text.split())[:400]


class _TimeoutAdapter(HTTPAdapter):
    """An adapter that sets a time-out for requests that have none (alluxio-py's readers and writers), and sends large pieces.

    `seconds` are the time to connect, and the time to wait for the next bytes.
    """

    def __init__(self, seconds: tuple[float, float]) -> None:
        self._seconds = seconds
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=BLOCK_BYTES, **kwargs)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self._seconds
        return super().send(request, *args, **kwargs)


class _NotThere(StoreUnavailable):
    """The path or the stream does not exist."""


class _TooFewWorkers(StoreUnavailable):
    """The cluster has fewer workers than copies were requested."""


class _Options:
    """Options that the classes of alluxio-py lack, or name differently from Alluxio 2."""

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def json(self) -> Mapping[str, object]:
        """Return the options as they are sent."""
        return self._fields


def _describe(error: BaseException) -> str:
    """Return the text of an error, in one line; alluxio-py wraps network errors and leaves their text out."""
    if isinstance(error, exceptions.HTTPError) and error.__context__ is not None:
        error = error.__context__
    if isinstance(error, requests.JSONDecodeError):
        return "its answer is not one of Alluxio's REST API (which can happen while a worker or the master is down)"
    if isinstance(error, requests.ConnectionError):
        return _describe_connection(str(error))
    text = error.message if isinstance(error, exceptions.AlluxioError) else error_text(error)
    return " ".join(str(text).split())[:400]
