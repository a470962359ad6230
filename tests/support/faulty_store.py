"""A store in memory that fails, lies and hangs when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO

from tranlogs.base.errors import CorruptObject, StoreUnavailable
from tranlogs.stores import Content, ObjectStatus, Store


class FaultyStore(Store):
    """Objects in a dict.

    Attributes:
        objects: by name; a test may change them.
        fails: called with the method and the name before each call; true makes it raise StoreUnavailable.
        spoils: called with name and content at each put; what it gives is kept instead.
        hangs: while it is cleared, every call waits for it.
        is_durable: what `stat` says of objects.
        lost: names that `stat` calls lost, without a copy; those that are in `back`, too, have their copies again ...
        forgotten: ... and those that it is not going to make durable.
        calls: methods and names, in order.
    """

    def __init__(self, url: str = "faulty://store") -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        self.fails: Callable[[str, str], bool] = lambda method, name: False
        self.spoils: Callable[[str, bytes], bytes] = lambda name, content: content
        self.hangs = threading.Event()
        self.hangs.set()
        self.is_durable = True
        self.lost: set[str] = set()
        self.back: set[str] = set()
        self.forgotten: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    def put(self, name: str, content: Content) -> None:
        self._begin("put", name)
        assert name not in self.objects, f"{name} was used before"
        data = b""
        while chunk := content.read(1 << 16):
            data += chunk
        self.objects[name] = self.spoils(name, data)

    def get(self, name: str, into: BinaryIO) -> int:
        self._begin("get", name)
        if name not in self.objects:
            raise CorruptObject(f"{self.url}/{name}", "it is missing")
        return into.write(self.objects[name])

    def stat(self, name: str) -> ObjectStatus | None:
        self._begin("stat", name)
        if name not in self.objects:
            return None
        status = ObjectStatus(len(self.objects[name]), is_durable=self.is_durable, copies=1)
        status = replace(status, is_forgotten=True, is_durable=False) if name in self.forgotten else status
        if name in self.lost:
            status = replace(status, is_lost=True, is_durable=False, copies=1 if name in self.back else 0)
        return status

    def names(self, prefix: str) -> list[str]:
        self._begin("names", prefix)
        return sorted(name for name in self.objects if name.startswith(prefix.rstrip("/") + "/"))

    def delete(self, name: str) -> None:
        self._begin("delete", name)
        self.objects.pop(name, None)

    def request_durability(self, name: str) -> None:
        self._begin("request_durability", name)
        self.forgotten.discard(name)
        if name in self.back:
            self.lost.discard(name)

    def _begin(self, method: str, name: str) -> None:
        self.calls.append((method, name))
        self.hangs.wait()
        if self.fails(method, name):
            raise StoreUnavailable(self.url, f"{method} {name} failed")
