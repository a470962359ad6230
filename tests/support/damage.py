"""Ways to break a file, each a function; what a test breaks it says as a sentence that names the place."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tranlogs.log.reader import Record

Span = tuple[int, int]  # bytes from, to
Damage = Callable[[Path, random.Random, Span], str]


def flip_bit(path: Path, rnd: random.Random, span: Span) -> str:
    """One bit, as a cosmic ray would."""
    at, bit = rnd.randrange(*span), rnd.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"bit {bit} of byte {at} of {path.name} flipped"


def zero_range(path: Path, rnd: random.Random, span: Span) -> str:
    """A range of zeros, as a disk gives that never wrote it."""
    return _overwrite(path, span, rnd, "zeroed", bytes)


def garble_range(path: Path, rnd: random.Random, span: Span) -> str:
    """A range of noise."""
    return _overwrite(path, span, rnd, "garbled", rnd.randbytes)


def repeat_page(path: Path, rnd: random.Random, span: Span) -> str:
    """A page in the place of another one, as a misdirected write leaves it."""
    pages = range(span[0] // 4096, max(span[1] // 4096, span[0] // 4096 + 1))
    source, target = rnd.choice(pages), rnd.choice(pages)
    with path.open("r+b") as file:
        file.seek(source * 4096)
        page = file.read(min(4096, path.stat().st_size - target * 4096))
        file.seek(target * 4096)
        file.write(page)
    return f"page {target} of {path.name} overwritten by page {source}"


def truncate(path: Path, rnd: random.Random, span: Span) -> str:
    """The end is missing."""
    size = rnd.randrange(*span)
    os.truncate(path, size)
    return f"{path.name} cut to {size} bytes"


def extend(path: Path, rnd: random.Random, span: Span) -> str:
    """Noise behind the end."""
    more = rnd.choice((1, 100, 4096, 100_000))
    with path.open("ab") as file:
        file.write(rnd.randbytes(more))
    return f"{path.name} extended by {more} bytes"


def delete(path: Path, rnd: random.Random, span: Span) -> str:
    """The file is gone."""
    path.unlink()
    return f"{path.name} deleted"


IN_PLACE: Sequence[Damage] = (flip_bit, zero_range, garble_range, repeat_page)
ALL: Sequence[Damage] = (*IN_PLACE, truncate, extend, delete)


def swap(first: Path, second: Path) -> str:
    """Two files have each other's name."""
    aside = first.with_name(first.name + ".swap")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return f"{first.name} and {second.name} swapped"


def _overwrite(path: Path, span: Span, rnd: random.Random, verb: str, make: Callable[[int], bytes]) -> str:
    at = rnd.randrange(*span)
    count = min(rnd.choice((1, 8, 100, 512, 4096, 20_000)), path.stat().st_size - at)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(make(count))
    return f"bytes {at} to {at + count} of {path.name} {verb}"


def tensor_span(entry: Record, name: str) -> Span:
    """Return where the bytes of a tensor lie in the segment's file; its record must not be compressed."""
    assert not any(piece["codec"] != "raw" for piece in entry.describe_pieces()), "stored bytes are others than the tensor's"
    slots, starts = entry.layout.index[name], entry.starts()
    sizes = entry.layout.sizes_in(entry.absent, entry.sparse)
    at = entry.location.payload_offset
    return at + starts[slots[0]], at + starts[slots[-1]] + sizes[slots[-1]]
