"""What every store must do. A store's tests inherit from StoreConformance and give it a fixture `store`."""

from __future__ import annotations

import io
import random
import threading
import uuid
from pathlib import Path
from typing import BinaryIO

import pytest

from tranlogs.base.errors import CorruptObject, StoreUnavailable
from tranlogs.stores import Content, Store

MIB = 1 << 20
ODD = ["run=7/rank 0", "naïve", "a+b", "a%41b", "a#b", "a@b,c;d:e&f=g", "[x]{y}'z", "~1", "seg-0001~0f3a.lmdb"]


class StoreConformance:
    """See the module. `large` is the largest object that is sent, in bytes."""

    large = 70 * MIB  # more than a part of the archiver's, and than a block of the stores that have such

    @pytest.fixture
    def folder(self) -> str:
        """A prefix of the test's own."""
        return uuid.uuid4().hex

    @pytest.mark.parametrize("nbytes", [0, 1, MIB, "large"])
    def test_what_was_put_comes_back(self, store: Store, folder: str, tmp_path: Path, nbytes: int | str) -> None:
        content = random.Random(0).randbytes(self.large if isinstance(nbytes, str) else nbytes)
        put(store, f"{folder}/object", content)
        status = store.stat(f"{folder}/object")
        assert status is not None
        assert (status.nbytes, status.is_complete, status.is_lost) == (len(content), True, False)
        with (tmp_path / "copy").open("wb") as file:
            assert store.get(f"{folder}/object", file) == len(content)
        assert (tmp_path / "copy").read_bytes() == content

    def test_a_part_of_a_file_is_put(self, store: Store, folder: str) -> None:
        content = io.BytesIO(b"before" + b"part" + b"after")
        content.seek(6)
        store.put(f"{folder}/part", content_of(content, 4))
        assert read(store, f"{folder}/part") == b"part"

    def test_a_file_that_ends_early_is_not_called_sound(self, store: Store, folder: str) -> None:
        with pytest.raises(OSError, match="5 of 9 bytes early"):
            store.put(f"{folder}/short", content_of(io.BytesIO(b"1234"), 9))
        status = store.stat(f"{folder}/short")
        assert status is None or not status.is_complete or status.nbytes != 9

    def test_content_that_cannot_be_read_is_not_the_store_s_fault(self, store: Store, folder: str) -> None:
        class Broken(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                if self.tell() >= 2 * MIB:
                    raise OSError(5, "Input/output error", "segment")
                return super().read(size)

        with pytest.raises(OSError, match="Input/output error: 'segment'"):
            store.put(f"{folder}/broken", content_of(Broken(bytes(4 * MIB)), 4 * MIB))
        status = store.stat(f"{folder}/broken")
        assert status is None or not status.is_complete or status.nbytes != 4 * MIB

    def test_an_attempt_under_a_fresh_name_leaves_the_first_alone(self, store: Store, folder: str) -> None:
        put(store, f"{folder}/object~1", b"first")
        put(store, f"{folder}/object~2", b"the second")
        assert read(store, f"{folder}/object~1") == b"first"
        assert read(store, f"{folder}/object~2") == b"the second"

    def test_a_missing_object_is_told(self, store: Store, folder: str) -> None:
        put(store, f"{folder}/here/object", b"1")
        for name in (f"{folder}/nothing", f"{folder}/here/nothing", f"{folder}/here"):
            assert store.stat(name) is None
            with pytest.raises(CorruptObject, match="it is missing"):
                store.get(name, io.BytesIO())

    def test_names_below_a_folder(self, store: Store, folder: str) -> None:
        names = [f"{folder}/{name}" for name in ("b", "a/2", "a/1", "a/c/d/e", "aa/1", "a.1")]
        for name in names:
            put(store, name, b"1")
        assert store.names(folder) == sorted(names)
        assert store.names(f"{folder}/a") == [f"{folder}/a/1", f"{folder}/a/2", f"{folder}/a/c/d/e"]
        assert store.names(f"{folder}/a/") == store.names(f"{folder}/a")
        assert store.names(f"{folder}/b") == []
        assert store.names(f"{folder}/nothing") == []
        assert set(names) <= set(store.names(""))

    def test_deleting_twice_is_the_same_as_once(self, store: Store, folder: str) -> None:
        put(store, f"{folder}/object", b"1")
        put(store, f"{folder}/other", b"2")
        for _ in range(2):
            store.delete(f"{folder}/object")
            assert store.stat(f"{folder}/object") is None
            assert store.names(folder) == [f"{folder}/other"]
        store.delete(f"{folder}/nothing/at/all")

    @pytest.mark.parametrize("name", ODD)
    def test_names_with_odd_characters(self, store: Store, folder: str, name: str) -> None:
        put(store, f"{folder}/{name}/{name}", name.encode())
        assert store.names(folder) == [f"{folder}/{name}/{name}"]
        assert read(store, f"{folder}/{name}/{name}") == name.encode()
        store.delete(f"{folder}/{name}/{name}")
        assert store.names(folder) == []

    def test_many_threads(self, store: Store, folder: str) -> None:
        wrong: list[object] = []

        def work(number: int) -> None:
            try:
                for turn in range(4):
                    content = random.Random(number * 100 + turn).randbytes(100_000 + number)
                    put(store, f"{folder}/{number}/{turn}", content)
                    if read(store, f"{folder}/{number}/{turn}") != content:
                        wrong.append((number, turn))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        assert len(store.names(folder)) == 32

    def test_what_reading_into_fails_with_is_not_the_store_s(self, store: Store, folder: str) -> None:
        class Full(io.BytesIO):
            def write(self, _: object) -> int:
                raise OSError(28, "No space left on device")

        put(store, f"{folder}/object", b"1" * 1000)
        with pytest.raises((OSError, StoreUnavailable), match="No space left"):
            store.get(f"{folder}/object", Full())

    def test_hastening_what_is_there_keeps_it_there(self, store: Store, folder: str) -> None:
        put(store, f"{folder}/object", b"content")
        for _ in range(3):
            store.request_durability(f"{folder}/object")
            assert read(store, f"{folder}/object") == b"content"
            assert store.names(folder) == [f"{folder}/object"]
        store.delete(f"{folder}/object")
        assert store.names(folder) == []
        store.request_durability(f"{folder}/nothing")
        assert store.stat(f"{folder}/nothing") is None


def put(store: Store, name: str, content: bytes) -> None:
    """Put some bytes."""
    store.put(name, Content.of(content))


def content_of(file: BinaryIO, nbytes: int) -> Content:
    """Bytes of a file from where it is."""
    start = file.tell()

    def read_at(offset: int, size: int) -> bytes:
        file.seek(start + offset)
        return file.read(size)

    return Content(read_at, nbytes)


def read(store: Store, name: str) -> bytes:
    """All bytes of an object."""
    into = io.BytesIO()
    store.get(name, into)
    return into.getvalue()
