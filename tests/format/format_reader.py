"""A reader of runs written from docs/format.md alone: nothing of tranlogs is imported here."""

from __future__ import annotations

import collections
import json
import math
import struct
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import xxhash

SIZES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    "complex128": 16,
}
KINDS = {1: "SEGMENT", 2: "STEP", 3: "IMAGE", 4: "BOUNDARY", 5: "UNIT"}


def itemsize(dtype: str) -> int:
    return 1 if dtype.startswith("float8_") else SIZES[dtype]


@dataclass
class DocumentEntry:
    kind: str
    sequence: int
    step: int
    tensors: dict[str, Any] = field(default_factory=dict)  # bytes; (indices, values) of sparse ones; None
    body: Any = None
    boundary: Any = None
    covered: int = 0
    digests: bytes = b""
    scalars: dict[str, float] = field(default_factory=dict)


def decode_tree(data: bytes, arrays: Any, parts: Any = None) -> Any:
    hook = partial(_extension, arrays, parts)
    return msgpack.unpackb(data, ext_hook=hook, strict_map_key=False, unicode_errors="surrogatepass")


def _extension(arrays: Any, parts: Any, code: int, data: bytes) -> Any:
    if code in (9, 10):
        return _array(code, data, arrays)
    if code == 13:
        return parts(*struct.unpack("<I", data))
    if code == 6:
        return int.from_bytes(data, "little", signed=True)
    if code == 7:
        return complex(*struct.unpack("<dd", data))
    if code == 8:
        dtype = data[1 : 1 + data[0]].decode()
        return np.frombuffer(data[1 + data[0] :], dtype)[0]
    content = decode_tree(data, arrays, parts)
    if code == 11:
        return ("sparse", *content)
    if code == 12:
        return ("extension", *content)
    kinds: dict[int, Any] = {1: tuple, 2: set, 3: frozenset, 4: collections.OrderedDict, 5: collections.Counter}
    return kinds[code](content)


def _array(code: int, data: bytes, arrays: Any) -> Any:
    flags, dtype, at = data[0], data[2 : 2 + data[1]].decode(), 2 + data[1]
    rank, at = data[at], at + 1
    shape, at = struct.unpack_from(f"<{rank}Q", data, at), at + 8 * rank
    strides = None
    if flags & 2:
        strides, at = struct.unpack_from(f"<{rank}q", data, at), at + 8 * rank
    if code == 10:
        (index,) = struct.unpack_from("<I", data, at)
        return ("array", dtype, shape, strides, arrays(index, math.prod(shape) * itemsize(dtype)))
    assert len(data) - at == math.prod(shape) * itemsize(dtype)
    return ("array", dtype, shape, strides, data[at:])


class DocumentSegment:
    """A segment's file, read as the page says."""

    def __init__(self, path: Path) -> None:
        self.path, self.raw = path, path.read_bytes()
        self.segment_id = int(path.stem.split("-")[1], 16)
        self.places = self._find_records()
        self.codecs: set[int] = set()  # that were met

    def _find_records(self) -> list[int]:
        found, at = [], 0
        while at + 64 <= len(self.raw):
            if self._is_record(at):
                found.append(at)
                description, payload = struct.unpack_from("<IQ", self.raw, at + 36)
                at += -(-(64 + payload + description) // 64) * 64
            else:
                at += 64
        return found

    def _is_record(self, at: int) -> bool:
        head = self.raw[at : at + 64]
        checksum, segment_id = struct.unpack_from("<IQ", head, 4)
        right = xxhash.xxh3_64_intdigest(head[:4] + bytes(4) + head[8:]) & 0xFFFFFFFF
        if head[:4] != b"TLR2" or checksum != right or segment_id != self.segment_id:
            return False
        assert head[33] == 3, f"version {head[33]}"
        return True

    def entries(self) -> list[DocumentEntry]:
        """The first is the SEGMENT record; the others are checked to be chained."""
        found, chain = list[DocumentEntry](), None
        for at in self.places:
            head = self.raw[at : at + 64]
            sequence, step, kind, _, covered = struct.unpack_from("<QQBBH", head, 16)
            (before,) = struct.unpack_from("<Q", head, 56)
            assert chain in (None, before)
            assert not covered or KINDS[kind] == "BOUNDARY"
            assert not found or step == found[-1].step + covered + (KINDS[kind] in ("STEP", "UNIT"))
            chain = before if KINDS[kind] == "SEGMENT" else xxhash.xxh3_64_intdigest(head)
            found.append(self._entry(at, KINDS[kind], sequence, step))
            found[-1].covered = covered
        return found

    def _sections(self, at: int) -> tuple[tuple[int, int, int], list[bytes]]:
        assert self._is_record(at)
        length, payload, total = struct.unpack_from("<IQQ", self.raw, at + 36)
        description = self.raw[at + 64 + payload : at + 64 + payload + length]
        assert xxhash.xxh3_64_intdigest(description) == total
        fields, lengths = struct.unpack_from("<QQQ", description), struct.unpack_from("<8I", description, 24)
        sections, start = [], 56
        for size in lengths:
            sections.append(description[start : start + size])
            start += size
        assert start == len(description)
        return fields, sections

    def _entry(self, at: int, kind: str, sequence: int, step: int) -> DocumentEntry:
        (layout_at, body_at, nbytes), (layout, absent, sparse, sums, codecs, digests, scalars, _) = self._sections(at)
        entry = DocumentEntry(kind, sequence, step, digests=digests, scalars=decode_tree(scalars, None) if scalars else {})
        if layout_at:
            layout = self._sections(self._offset(layout_at))[1][0]
        if layout:
            specs = decode_tree(layout, None)
            forms = decode_tree(sparse, None) if sparse else {}
            sizes = [self._size(i, spec, absent, forms) for i, spec in enumerate(specs)]
            assert sum(sizes) == nbytes
            data = self._undone(at + 64, cut(sizes), sums, codecs)
            start = 0
            for i, (spec, size) in enumerate(zip(specs, sizes, strict=True)):
                self._add(entry.tensors, spec, data[start : start + size], forms.get(i), is_absent(absent, i))
                start += size
        body = self._body(at)
        if 0 in body:
            base = self._body(self._offset(body.pop(0)))
            assert 0 not in base
            base = {key: part for key, part in base.items() if key.partition("/")[0]}
            body = {key: part for key, part in (base | body).items() if part is not None}
        if body_at:
            assert "" not in body
            body[""] = self._body(self._offset(body_at))[""]
        parts = {key: self._part(key, body) for key in body if "/" not in key}
        assert ("" in parts) == (kind != "BOUNDARY")
        entry.body = parts.pop("", None)
        if kind in ("BOUNDARY", "UNIT"):
            entry.boundary = parts
        else:
            assert not parts
        return entry

    def _size(self, i: int, spec: Any, absent: bytes, forms: dict[int, Any]) -> int:
        _, dtype, shape, _, piece = spec
        if is_absent(absent, i):
            return 0
        if i in forms:
            dimensions, nonzeros, _ = forms[i]
            return int(dimensions * nonzeros * 8 + nonzeros * math.prod(shape[dimensions:]) * itemsize(dtype))
        return math.prod(shape if piece is None else piece[2]) * itemsize(dtype)

    def _undone(self, at: int, sizes: list[int], sums: bytes, codecs: bytes) -> bytes:
        assert len(sums) == 8 * len(sizes)
        stored, kinds = sizes, bytes(len(sizes))
        if codecs:
            stored, kinds = list(struct.unpack_from(f"<{len(sizes)}I", codecs)), codecs[4 * len(sizes) :]
        found = b""
        for size, nbytes, codec, total in zip(sizes, stored, kinds, struct.unpack(f"<{len(sizes)}Q", sums), strict=True):
            found += self._piece(at, nbytes, codec, total, size)
            at += nbytes
        return found

    def _piece(self, at: int, nbytes: int, codec: int, total: int, size: int | None) -> bytes:
        raw = self.raw[at : at + nbytes]
        assert xxhash.xxh3_64_intdigest(raw) == total
        self.codecs.add(codec)
        if codec == 1:
            assert size is not None
            raw = bytes(size)
        elif codec == 2:
            raw = (np.frombuffer(raw, "<u2").astype("<u4") << 16).tobytes()
        elif codec == 3:
            assert size is not None
            bits = -(-(size // 4) // 8)
            is_stored = np.unpackbits(np.frombuffer(raw[nbytes - bits :], "u1"), count=size // 4, bitorder="little") == 1
            words = np.zeros(size // 4, "<u4")
            words[is_stored] = np.frombuffer(raw[: nbytes - bits], "<u4")
            raw = words.tobytes()
        assert size in (None, len(raw))
        return raw

    def _add(self, tensors: dict[str, Any], spec: Any, data: bytes, form: Any, missing: bool) -> None:
        name = spec[0]
        if missing:
            tensors[name] = None
        elif form is not None:
            indices = form[0] * form[1] * 8
            tensors[name] = (form[0], form[2], data[:indices], data[indices:])
        else:
            tensors[name] = tensors.get(name, b"") + data

    def _offset(self, place: int) -> int:
        at = place & (1 << 40) - 1
        assert xxhash.xxh3_64_intdigest(self.raw[at : at + 64]) & 0xFFFFFF == place >> 40
        return at

    def _body(self, at: int) -> dict[Any, Any]:
        body: dict[Any, Any] = decode_tree(self._sections(at)[1][7] or b"\x80", None)
        return body

    def _part(self, key: str, body: dict[Any, Any]) -> Any:
        return decode_tree(
            self._content(key, body),
            lambda index, size: self._far(self._content(f"{key}/#{index}", body), size),
            lambda index: self._part(f"{key}/{index}", body),
        )

    def _content(self, key: str, body: dict[Any, Any]) -> Any:
        found = body[key]
        return self._body(self._offset(found))[key] if isinstance(found, int) else found

    def _far(self, row: Any, size: int) -> bytes:
        at, nbytes, total, codec = row
        return self._piece(at, nbytes, codec, total, size)


def is_absent(bits: bytes, i: int) -> bool:
    return bool(bits) and bool(bits[i // 8] >> i % 8 & 1)


def cut(sizes: list[int]) -> list[int]:
    """Bytes of each piece."""
    pieces, current = [], 0
    for size in sizes:
        if size >= 262_144 and current:
            pieces.append(current)
            current = 0
        current += size
        while current > 1_048_576:
            pieces.append(1_048_576)
            current -= 1_048_576
        if size >= 262_144 and current:
            pieces.append(current)
            current = 0
    return pieces + [current] * (current > 0)


def read_manifest(path: Path) -> dict[str, Any]:
    text = path.read_text()
    outer = json.loads(text)
    start = text.index('"manifest": ') + len('"manifest": ')
    end = text.rindex("}", 0, text.rindex('"xxh3_64"')) + 1
    inner = text[start:end].replace("\n ", "\n")
    assert xxhash.xxh3_64_hexdigest(inner.encode()) == outer["xxh3_64"]
    assert outer["manifest"]["format"] == 3
    manifest: dict[str, Any] = outer["manifest"]
    return manifest


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, bytes], Any]:
    """Manifest, tensors, meta."""
    manifest = read_manifest(folder / "manifest.json")
    raw = (folder / "state.safetensors").read_bytes()
    assert len(raw) == manifest["state"]["bytes"]
    (length,) = struct.unpack_from("<Q", raw)
    assert xxhash.xxh3_64_hexdigest(raw[8 : 8 + length]) == manifest["state"]["header_xxh3_64"]
    tensors = {}
    for name, about in manifest["tensors"].items():
        start = 8 + length + about["offset"]
        tensors[name] = raw[start : start + about["bytes"]]
        assert xxhash.xxh3_64_hexdigest(tensors[name]) == about["xxh3_64"]
    meta = (folder / "meta.bin").read_bytes()
    assert (len(meta), xxhash.xxh3_64_hexdigest(meta)) == (manifest["meta"]["bytes"], manifest["meta"]["xxh3_64"])
    return manifest, tensors, decode_tree(meta, lambda index, _: tensors[f"aux/{index:06d}"])


def checked_records(key: bytes, value: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Ordinal, and offset and head of each record."""
    assert xxhash.xxh3_64_intdigest(key + value[8:]) == int.from_bytes(value[:8], "big")
    (offset,), found = struct.unpack_from("<Q", value, 8), []
    for at in range(16, len(value), 64):
        head = bytes(value[at : at + 64])
        found.append((offset, head))
        description, payload = struct.unpack_from("<IQ", head, 36)
        offset += -(-(64 + payload + description) // 64) * 64
    assert int(key.split(b"/")[2]) == int.from_bytes(found[0][1][16:24], "little")
    return int(key.split(b"/")[1]), found


def checked_row(key: bytes, value: bytes) -> dict[str, Any]:
    assert xxhash.xxh3_64_intdigest(key + value[8:]) == int.from_bytes(value[:8], "big")
    row: dict[str, Any] = json.loads(value[8:])
    return row
