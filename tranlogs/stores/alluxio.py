"""Alluxio 2.9 as a store, through the REST API of its proxy. The only module that imports alluxio-py.

What is written with ASYNC_THROUGH lies in the memory of workers when `put` comes back, and is copied to the under-store behind
it. Nothing that the cluster answers is taken for proof (docs/stores.md says why):

* Closing a stream answers "fine" when its last block failed, and completes a short file when the writer failed. So a failed
  write closes its stream and deletes the file, and only `stat` says what is there.
* Streams go by path, so one that was left open can complete a later file of that name: a name is used again only when its
  stream is known to be closed.
* A request to persist can be dropped, and a file that was LOST stays LOST though its workers come back: `hasten` renames it
  with persist=true, which puts it in the queue again. So an object lies in one of two places, under its name or under that
  and a suffix, and is looked for in both: nobody has to be told where it lies, and no kill can come between.
* Errors mostly come as UNKNOWN: what they mean is in their words.
"""

from __future__ import annotations

import re
import threading
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
from .alluxio_advice import advice
from .base import ObjectStatus, Store
from .file_slice import Part

_T = TypeVar("_T")

_NETWORK = (exceptions.HTTPError, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
_FOREIGN = (*_NETWORK, exceptions.AlluxioError, ValueError, KeyError, TypeError)  # the last three: an answer that is none
_REFUSED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnimplementedError,
    exceptions.InvalidArgumentError,
)

REST_IS_OFF = (
    "it answers, but not as Alluxio's REST API, which is off by default since 2.9.3: set "
    "alluxio.proxy.s3.v2.version.enabled=false and alluxio.proxy.s3.v2.async.processing.enabled=false, and restart the proxy"
)
_BLOCK_BYTES = 1 << 20
_ELSEWHERE = "~elsewhere"
_PERSISTING_FOLDER = ".alluxio_ufs_persistence/"  # where Alluxio writes what it is persisting
_LOOK_BELOW = {"syncIntervalMs": 0}  # look into the under-store now


class AlluxioStore(Store):
    """Objects are files below a folder of Alluxio. See the module.

    Args:
        host, port: of a proxy.
        root: the folder, "/" between parts.
        copies: workers that are to hold each object in memory before a write comes back (replication=N in the URL). Where there
            are fewer workers, there are fewer copies, which `stat` shows.
        answer_seconds: how long to wait for the next bytes of an answer.
        write_type: what Alluxio does with what is written; only ASYNC_THROUGH is what this module describes.
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
        self._idle: list[Any] = []  # clients that nobody uses now: one must not be used by two threads at once
        self._lock = threading.Lock()

    # -- the interface

    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        start = content.tell()
        for copies in range(self.copies_wanted, 0, -1):
            content.seek(start)
            part = Part(name, content, nbytes)
            try:
                return self._write(name, part, copies)
            except StoreUnavailable as error:
                if part.error is not None:
                    raise part.error from None
                if copies == 1 or not isinstance(error, _TooFewWorkers):
                    raise
        raise AssertionError("at least one copy is wanted")

    def get(self, name: str, into: BinaryIO) -> int:
        path, about = self._found(name)
        if about is None:
            raise CorruptObject(f"{self.url}/{name}", "it is missing")
        if not about.completed:
            raise CorruptObject(f"{self.url}/{name}", "writing it was never finished")
        if _has_lost(self._status(about)):  # it would be tried for seconds
            raise CorruptObject(f"{self.url}/{name}", "the store has lost it")
        done = 0
        try:
            with closing(self._blocks(name, path)) as blocks:
                for block in blocks:
                    done += len(block)
                    into.write(block)
        except StoreUnavailable as error:
            is_answer = isinstance(error.__cause__, requests.JSONDecodeError)  # a page, where no worker has what is read
            if (is_answer or not isinstance(error.__cause__, _NETWORK)) and _is_nowhere(
                self.stat(name)
            ):  # the store itself is not away
                raise CorruptObject(f"{self.url}/{name}", "the store has lost it") from None
            raise
        if done != about.length:
            raise CorruptObject(f"{self.url}/{name}", f"it ends after {done} of {about.length} bytes")
        return done

    def stat(self, name: str) -> ObjectStatus | None:
        return self._status(self._found(name)[1])

    def _status(self, about: Any) -> ObjectStatus | None:
        if about is None:
            return None
        state = about.persistence_state.name  # what it is wrapped in cannot be compared
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
        # Looking below each time costs something, and is the only way to see what another cluster wrote.
        options = _Options(recursive=True, loadMetadataType="ALWAYS", commonOptions=_LOOK_BELOW)
        path = self._path(prefix) if prefix else self._root
        try:
            found = self._repeatable(prefix, lambda client: client.list_status(quote(path), options))
        except _NotThere:
            return []
        below = self._root.rstrip("/") + "/"
        files = (about.path.removeprefix(below) for about in found if not about.folder and about.path != path)
        return sorted({name.removesuffix(_ELSEWHERE) for name in files if not name.startswith(_PERSISTING_FOLDER)})

    def delete(self, name: str) -> None:
        for path in self._places(name):
            with suppress(_NotThere):
                self._repeatable(name, partial(_delete, path=quote(path)))
                break

    def hasten(self, name: str) -> None:
        path, about = self._found(name)
        status = self._status(about)
        if status is None or status.is_durable or not status.is_complete or _has_lost(status):
            return
        fresh = next(place for place in self._places(name) if place != path)
        try:
            with self._client(name) as client:
                client.rename(quote(path), fresh, _Options(persist=True))
        except StoreUnavailable:  # which leaves open whether it was done
            if self._found(name)[0] != fresh:
                raise

    def advice(self, problem: str) -> str:
        return advice(problem)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for client in idle:
            client.session.close()

    # -- reading and writing

    def _write(self, name: str, part: Part, copies: int) -> None:
        path = quote(self._path(name))
        options = _Options(recursive=True, writeType=self._write_type, replicationDurable=copies, persistenceWaitTime=0)
        with self._client(name) as client:
            stream = client.create_file(path, options)
            try:
                if part.nbytes:
                    with closing(client.write(stream)) as writer:
                        sent = writer.write(part)
                    if sent != part.nbytes:
                        raise ValueError(f"{sent} of {part.nbytes} bytes were taken")
                client.close(stream)
            except BaseException as error:
                is_gone = self._undo(name, stream)
                if not is_gone and isinstance(error, _FOREIGN):  # not to be tried again under this name
                    raise StoreUnavailable(self.url, f"{name}: {_words(error)}; what was written may still be there") from error
                raise

    def _undo(self, name: str, stream: int) -> bool:
        """Close the stream of a write that failed, which may complete a short file, and delete that; whether it was done."""
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
                    while block := reader.read(_BLOCK_BYTES):
                        yield block
            finally:
                with suppress(*_FOREIGN):  # the proxy closes what is left open
                    client.close(stream)

    # -- calling

    def _found(self, name: str) -> tuple[str, Any]:
        """Where an object lies, and what Alluxio says of it; None if there is nothing, in the under-store neither."""
        places = self._places(name)
        for options in (None, _Options(commonOptions=_LOOK_BELOW)):
            for path in places:
                with suppress(_NotThere):
                    about = self._repeatable(name, partial(_get_status, path=quote(path), options=options))
                    return path, None if about.folder else about
        return places[0], None

    def _places(self, name: str) -> tuple[str, str]:
        """Where an object can lie."""
        path = self._path(name)
        return path, path + _ELSEWHERE

    def _repeatable(self, name: str, call: Callable[[Any], _T]) -> _T:
        """A call that may be made twice: a connection that the proxy has closed meanwhile is noticed only in use."""
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
        """A client for the block alone; errors in the block are translated.

        Raises:
            StoreRefused, StoreUnavailable, _NotThere, _TooFewWorkers
        """
        try:
            with self._lock:
                client = self._idle.pop() if self._idle else None
            if client is None:
                client = self._connected()
            try:
                yield client
            except exceptions.AlluxioError:
                self._give_back(client)
                raise
            except BaseException:
                client.session.close()  # it may hold half an answer
                raise
            self._give_back(client)
        except _FOREIGN as error:
            raise self._translated(name, error) from error

    def _give_back(self, client: Any) -> None:
        with self._lock:
            self._idle.append(client)

    def _connected(self) -> Any:
        client = alluxio.Client(*self._address, timeout=self._seconds)
        client.session.trust_env = False  # no proxy of the environment, no .netrc
        client.session.mount("http://", _PatientAdapter(self._seconds))
        # Where the REST API is off, calls answer 200 and nothing: some of them would look as if done.
        try:
            is_rest = client.exists("/") is True
        except ValueError:
            is_rest = False
        if not is_rest:
            client.session.close()
            raise StoreRefused(self.url, REST_IS_OFF)
        return client

    def _translated(self, name: str, error: BaseException) -> TranLogsError:
        words = f"{name}: {_words(error)}" if name else _words(error)
        if isinstance(error, exceptions.NotFoundError):
            return _NotThere(self.url, words)
        if isinstance(error, _REFUSED):
            return StoreRefused(self.url, words)
        if isinstance(error, exceptions.AlluxioError) and "Not enough workers" in error.message:
            return _TooFewWorkers(self.url, words)
        return StoreUnavailable(self.url, words)

    def _path(self, name: str) -> str:
        if "?" in name or "\\" in name:  # Alluxio takes the one for the end of a path, the other for a "/"
            raise StoreRefused(self.url, f"{name!r}: no name of an object in Alluxio has a '?' or a backslash")
        if name.endswith(_ELSEWHERE):
            raise StoreRefused(self.url, f"{name!r}: no name of an object ends with {_ELSEWHERE}")
        parts = name.strip("/").split("/")
        assert all(part not in ("", ".", "..") for part in parts), f"{name!r} is no name of an object"
        return "/".join([self._root.rstrip("/"), *parts])


def _has_lost(status: ObjectStatus | None) -> bool:
    """Whether the cluster has given an object up, and no worker has it."""
    return status is not None and status.is_lost and not status.copies


def _is_nowhere(status: ObjectStatus | None) -> bool:
    """Whether no worker has it whom one could ask, and the under-store neither."""
    return status is None or status.is_lost or (not status.is_durable and not status.copies)


def _get_status(client: Any, path: str, options: _Options | None) -> Any:
    return client.get_status(path, options)


def _delete(client: Any, path: str) -> None:
    client.delete(path)


def _words_of_connection(text: str) -> str:
    """What there is to know in what requests, urllib3 and the system say together."""
    if "BadStatusLine" in text:
        return "it speaks no HTTP"
    if "NameResolutionError" in text or "Name or service not known" in text or "name resolution" in text:
        return "its host's name is not known here"
    refused = re.search(r"\[Errno \d+\] [A-Za-z ]+", text)
    return refused.group().strip() if refused else " ".join(text.split())[:400]


class _NotThere(StoreUnavailable):
    """There is no such path, or no such stream."""


class _TooFewWorkers(StoreUnavailable):
    """Fewer workers serve than copies were asked for."""


class _Options:
    """Options that alluxio-py's own classes lack, or name as Alluxio 2 does not."""

    def __init__(self, **fields: object) -> None:
        self._fields = fields

    def json(self) -> Mapping[str, object]:
        """What is sent."""
        return self._fields


class _PatientAdapter(HTTPAdapter):
    """Gives a time-out to requests that have none (alluxio-py's readers and writers), and sends bodies in large pieces."""

    def __init__(self, seconds: tuple[float, float]) -> None:
        self._seconds = seconds
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=_BLOCK_BYTES, **kwargs)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self._seconds
        return super().send(request, *args, **kwargs)


def _words(error: BaseException) -> str:
    """What an error says, in one line; alluxio-py wraps those of the network and does not say them."""
    if isinstance(error, exceptions.HTTPError) and error.__context__ is not None:
        error = error.__context__
    if isinstance(error, requests.JSONDecodeError):
        return "its answer is none of Alluxio's REST API (while a worker or the master is away, that can be)"
    if isinstance(error, requests.ConnectionError):
        return _words_of_connection(str(error))
    text = error.message if isinstance(error, exceptions.AlluxioError) else error_text(error)
    return " ".join(str(text).split())[:400]
