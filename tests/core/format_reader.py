"""A reader of runs written from docs/format.md alone: nothing of tranlogs is imported here."""

from __future__ import annotations

import collections
import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

SIZES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1), "complex128": 16,
}  # fmt: skip
KINDS = {1: "SEGMENT", 2: "STEP", 3: "IMAGE", 4: "BOUNDARY"}


def itemsize(dtype: str) -> int:
    return 1 if dtype.startswith("float8_") else SIZES[dtype]


@dataclass
class FarArray:
    """An array of a tree whose bytes are elsewhere."""

    index: int


@dataclass
class DocumentEntry:
    kind: str
    sequence: int
    step: int
    tensors: dict[str, Any] = field(default_factory=dict)  # bytes; (indices, values) of sparse ones; None
    body: Any = None
    scalars: dict[str, float] = field(default_factory=dict)


def decode_tree(data: bytes, arrays: Any) -> Any:
    value, rest = _value(memoryview(data), arrays)
    assert not rest
    return value


def _text(data: memoryview) -> tuple[str, memoryview]:
    (n,) = struct.unpack_from("<I", data)
    return bytes(data[4 : 4 + n]).decode(), data[4 + n :]


def _many(data: memoryview, count: int, arrays: Any) -> tuple[list[Any], memoryview]:
    found = []
    for _ in range(count):
        value, data = _value(data, arrays)
        found.append(value)
    return found, data


def _value(data: memoryview, arrays: Any) -> tuple[Any, memoryview]:
    tag, data = chr(data[0]), data[1:]
    if tag in "NTF":
        return {"N": None, "T": True, "F": False}[tag], data
    if tag in "if":
        return struct.unpack_from("<q" if tag == "i" else "<d", data)[0], data[8:]
    if tag == "c":
        return complex(*struct.unpack_from("<dd", data)), data[16:]
    if tag in "Isb":
        (n,) = struct.unpack_from("<I", data)
        raw, data = bytes(data[4 : 4 + n]), data[4 + n :]
        return {"I": lambda: int.from_bytes(raw, "little", signed=True), "s": raw.decode, "b": lambda: raw}[tag](), data
    if tag in "ltSZ":
        items, data = _many(data[4:], struct.unpack_from("<I", data)[0], arrays)
        return {"l": list, "t": tuple, "S": set, "Z": frozenset}[tag](items), data
    if tag in "doC":
        items, data = _many(data[4:], 2 * struct.unpack_from("<I", data)[0], arrays)
        kinds: dict[str, Any] = {"d": dict, "o": collections.OrderedDict, "C": lambda pairs: collections.Counter(dict(pairs))}
        return kinds[tag](list(zip(items[::2], items[1::2], strict=True))), data
    if tag == "g":
        dtype, data = _text(data)
        return np.frombuffer(data[: itemsize(dtype)], dtype)[0], data[itemsize(dtype) :]
    if tag in "aA":
        return _array(tag, data, arrays)
    if tag == "p":
        shape, data = _value(data, arrays)
        coalesced, data = _value(data, arrays)
        indices, data = _value(data, arrays)
        values, data = _value(data, arrays)
        return ("sparse", shape, coalesced, indices, values), data
    assert tag == "x", tag
    name, data = _text(data)
    content, data = _value(data, arrays)
    return ("extension", name, content), data


def _array(tag: str, data: memoryview, arrays: Any) -> tuple[Any, memoryview]:
    flags, (dtype, data) = data[0], _text(data[1:])
    rank, data = data[0], data[1:]
    shape, data = struct.unpack_from(f"<{rank}Q", data), data[8 * rank :]
    strides = None
    if flags & 2:
        strides, data = struct.unpack_from(f"<{rank}q", data), data[8 * rank :]
    if tag == "A":
        (index,) = struct.unpack_from("<I", data)
        return ("array", dtype, shape, strides, arrays(index)), data[4:]
    n = math.prod(shape) * itemsize(dtype)
    return ("array", dtype, shape, strides, bytes(data[:n])), data[n:]


class DocumentSegment:
    """A segment's file, read as the page says."""

    def __init__(self, path: Path) -> None:
        self.path, self.raw = path, path.read_bytes()
        self.segment_id = int(path.stem.split("-")[1], 16)
        self.specs: dict[int, tuple[Any, ...]] = {}
        self.keys: dict[int, bytes] = {}
        for self.page_bytes in (4096, 16384, 32768, 65536):
            self.heads = sorted(self._find_heads())
            if self.heads:
                break

    def _find_heads(self) -> list[tuple[int, int]]:
        found = []
        for page in range(2, len(self.raw) // self.page_bytes):
            at = page * self.page_bytes
            number, _, flags, _ = struct.unpack_from("<QHHI", self.raw, at)
            head = self.raw[at + 16 : at + 16 + 56]
            if number != page or flags != 4 or head[:4] != b"TLE1":
                continue
            checksum, segment_id, sequence = struct.unpack_from("<IQQ", head, 4)
            right = xxhash.xxh3_64_intdigest(head[:4] + bytes(4) + head[8:]) & 0xFFFFFFFF
            if checksum == right and segment_id == self.segment_id:
                assert head[33] == 1, f"version {head[33]}"
                found.append((sequence, at + 16))
        return found

    def entries(self) -> list[DocumentEntry]:
        """The first is the SEGMENT entry; the others are checked to be chained."""
        found, chain = [], None
        for sequence, at in self.heads:
            head = self.raw[at : at + 56]
            step, kind = struct.unpack_from("<QB", head, 24)
            length, payload_sum, before = struct.unpack_from("<IQQ", head, 36)
            payload = self.raw[at + 56 : at + 56 + length]
            assert xxhash.xxh3_64_intdigest(payload) == payload_sum
            assert chain in (None, before)
            chain = before if KINDS[kind] == "SEGMENT" else xxhash.xxh3_64_intdigest(head)
            found.append(self._entry(KINDS[kind], sequence, step, decode_tree(payload, None)))
        return found

    def _entry(self, kind: str, sequence: int, step: int, payload: dict[str, Any]) -> DocumentEntry:
        entry = DocumentEntry(kind, sequence, step, scalars=payload.get("scalars", {}))
        for number, *spec in payload["specs"]:
            self.specs[number] = tuple(spec)
        frames = [struct.unpack_from("<IBBHQQQQQ", payload["frames"], at) for at in range(0, len(payload["frames"]), 48)]
        body = payload["body"]
        if "key" in payload:
            xor, key = zstandard.ZstdDecompressor().decompress(body), self.keys[payload["key"]]
            body = bytes(a ^ b for a, b in zip(xor, key, strict=True))
        elif kind == "BOUNDARY":
            self.keys[sequence] = body
        entry.body = decode_tree(body, lambda index: self._frame(frames[index]))
        for frame in frames[: payload["named"]]:
            self._add(entry.tensors, frame)
        return entry

    def _add(self, tensors: dict[str, Any], frame: tuple[int, ...]) -> None:
        name, part = self.specs[frame[0]][0], frame[1]
        if part == 3:
            tensors[name] = None
        elif part == 1:
            tensors[name] = (frame[3] & 0xFF, bool(frame[3] & 0x100), self._frame(frame))
        elif part == 2:
            tensors[name] = (*tensors[name], self._frame(frame))
        else:
            tensors[name] = tensors.get(name, b"") + self._frame(frame)

    def _frame(self, frame: tuple[int, ...]) -> bytes:
        number, part, codec, flags, nonzeros, page, offset, stored, checksum = frame
        _, dtype, shape, _, piece = self.specs[number]
        at = page * self.page_bytes + 16 + offset
        raw = self.raw[at : at + stored]
        assert xxhash.xxh3_64_intdigest(raw) == checksum
        dimensions = flags & 0xFF
        size = math.prod(shape if piece is None else piece[2]) * itemsize(dtype)
        if part == 1:
            size = dimensions * nonzeros * 8
        elif part == 2:
            size = nonzeros * math.prod(shape[dimensions:]) * itemsize(dtype)
        if codec == 1:
            raw = bytes(size)
        elif codec == 2:
            words = np.frombuffer(raw, "<u2").astype("<u4") << 16
            raw = words.tobytes()
        elif codec == 3:
            raw = zstandard.ZstdDecompressor().decompress(raw)
        assert len(raw) == size
        return raw


def read_manifest(path: Path) -> dict[str, Any]:
    text = path.read_text()
    outer = json.loads(text)
    start = text.index('"manifest": ') + len('"manifest": ')
    end = text.rindex("}", 0, text.rindex('"xxh3_64"')) + 1
    inner = text[start:end].replace("\n ", "\n")
    assert xxhash.xxh3_64_hexdigest(inner.encode()) == outer["xxh3_64"]
    assert outer["manifest"]["format"] == 1
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
    return manifest, tensors, decode_tree(meta, lambda index: tensors[f"aux/{index:06d}"])


def checked_row(key: bytes, value: bytes) -> dict[str, Any]:
    assert xxhash.xxh3_64_intdigest(key + value[8:]) == int.from_bytes(value[:8], "big")
    row: dict[str, Any] = json.loads(value[8:])
    return row
