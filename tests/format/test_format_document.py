"""docs/format.md says enough: a reader made from it alone gives what the product wrote; and version 3 stays readable."""

from __future__ import annotations

import ast
import collections
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from tests.format import format_reader
from tests.format.format_reader import DocumentSegment, checked_records, checked_row, read_checkpoint
from tests.support.bare_log import BareLog
from tests.support.toy import ToyTrainer, open_toy, uninterrupted
from tests.support.verify import problems_of
from tranlogs.base.config import JournalConfig
from tranlogs.base.types import Array, Extension, Piece, SparseArray, dense
from tranlogs.catalog import Catalog, MeasuredRow
from tranlogs.checkpoints import Checkpoint
from tranlogs.encoding import tree
from tranlogs.encoding.compression import Codec
from tranlogs.log.layout import NO_TENSORS, Payload
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_body import EncodedContent
from tranlogs.log.record_format import RecordKind
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.retention import EverySteps, KeepLatest

GOLDEN = Path(__file__).parents[1] / "data" / "run-format-3.tar.xz"
GOLDEN_STEPS = 12


def open_run(run: Path) -> ToyTrainer:
    config = JournalConfig(segment_bytes=1 << 20, durability="machine")
    return open_toy(run, sizes=(7, 300), config=config, policy=EverySteps(5), retention=KeepLatest(2))


def test_the_reader_imports_nothing_of_tranlogs() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(format_reader.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported <= set(sys.stdlib_module_names) | {"msgpack", "numpy", "xxhash"}


def tensors() -> list[tuple[str, Any]]:
    """One of each form that a frame can have."""
    rng = np.random.default_rng(3)
    noise = rng.standard_normal(5000).astype(np.float32)
    high = (noise.view(np.uint32) & 0xFFFF0000).view(np.float32)
    mostly_zero = np.zeros(20_000, np.float32)
    mostly_zero[::100] = 1.5
    turned = Array("float32", (50, 100), dense(noise).data, strides=(1, 50))
    box = Array("float32", (50, 100), dense(noise).data, whole=(100, 100), piece=Piece("box", (50, 0), (50, 100)))
    flat = Array("float32", (5000,), dense(noise).data, whole=(100, 100), piece=Piece("flat", (5000,), (5000,)))
    sparse = SparseArray((1000, 4), dense(np.array([[5, 900, 5]])), dense(rng.standard_normal((3, 4))), is_coalesced=False)
    return [
        ("raw", dense(noise)),
        ("zero", dense(np.zeros(3000))),
        ("high", dense(high)),
        ("mostly_zero", dense(mostly_zero)),
        ("none", None),
        ("turned", turned),
        ("box", box),
        ("flat", flat),
        ("sparse", sparse),
        ("empty", dense(np.zeros(0))),
        ("scalar", dense(np.array(7, np.int64))),
        ("large", dense(rng.standard_normal(400_000))),
        ("zeros", dense(np.zeros(100_000))),
        ("bfloat16", dense(np.tile(high, 20))),
        ("rows", dense(np.tile(mostly_zero, 4))),
        ("small", dense(np.arange(5, dtype=np.uint8))),
    ]


BODY = {
    "plain": [None, True, False, 7, -(1 << 70), 2.5, 3 - 4j, "ü", b"\0", (1, 2), {"a"}, frozenset({1})],
    "dicts": {"o": collections.OrderedDict(z=1, a=2), "c": collections.Counter("aab"), 5: {}},
    "numpy": [np.float32(1.5), np.arange(6).reshape(2, 3)],
    "far": np.arange(4000.0),
    "extension": Extension("torch.Size", (2, 3)),
    "sparse": SparseArray((3,), dense(np.array([[1]])), dense(np.array([2.0])), is_coalesced=True),
}


def comparable(value: Any) -> Any:
    """A value of the product's reader in the form in which the document's reader gives it."""
    if isinstance(value, Array):
        return ("array", value.dtype, value.shape, value.strides, value.data.tobytes())
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.shape, None, value.tobytes())
    if isinstance(value, SparseArray):
        parts = (value.indices, value.values)
        return ("sparse", value.shape, value.is_coalesced, *map(comparable, parts))
    if isinstance(value, Extension):
        return ("extension", value.tag, value.value)
    if isinstance(value, dict):
        return type(value)({key: comparable(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(comparable(item) for item in value)
    return value


def stored(tensor: Any) -> Any:
    """A tensor that was logged in the form in which the document's reader gives it."""
    if isinstance(tensor, SparseArray):
        return tensor.indices.shape[0], tensor.is_coalesced, tensor.indices.data.tobytes(), tensor.values.data.tobytes()
    return None if tensor is None else tensor.data.tobytes()


def assert_reads_the_same(path: Path) -> set[int]:
    """Compare all of a segment; returns the codecs that it holds."""
    document = DocumentSegment(path)
    entries = document.entries()
    [segment] = [segment for segment in read_facts(path.parent.parent).segments if segment.path == path]
    with SegmentReader(path) as reader:
        for found, entry in zip(entries, reader.records(list(segment.locations)), strict=True):
            head = (entry.kind.name, entry.head.sequence, entry.step, entry.head.covered, entry.scalars)
            assert (found.kind, found.sequence, found.step, found.covered, found.scalars) == head
            assert found.digests == entry.digests
            assert found.body == comparable(entry.body())
            assert found.boundary == (comparable(entry.boundary()) if entry.kind.is_boundary else None)
            assert list(found.tensors) == entry.tensor_names()
            for name, content in found.tensors.items():
                assert content == stored(entry.read(name))
    return document.codecs


def test_every_form_of_record_is_read_from_the_document(tmp_path: Path) -> None:
    bare = BareLog(tmp_path / "rank0", JournalConfig(durability="process", segment_bytes=64 << 20))  # one file has them all
    log = bare.open()
    encoder = log.encoder
    at = 0
    for step in range(1, 6):
        log.append(Payload.of(tensors()), EncodedContent(RecordKind.STEP, at + 1, encoder.whole(BODY, None), b"12345678"))
        log.append(
            Payload.of(tensors()[step:]), EncodedContent(RecordKind.STEP, at + 2, encoder.whole({"lr": 0.1}, None), b"x" * step)
        )
        at += 2
        log.append(Payload.of(tensors()[:2]), EncodedContent(RecordKind.IMAGE, at, encoder.whole({}, None)))
        below = {"epoch": step // 2, "words": tree.Fixed([tree.Fixed(np.arange(300) + step // 3), step // 2]), "at": step}
        body = {"rng": list(range(step, 500)) + [0] * step, "changing": np.arange(4000.0) * (step // 2), "below": below, **BODY}
        if step % 3 == 1:
            body["sometimes"] = {"again": tree.Fixed(step)}
        log.append(NO_TENSORS, EncodedContent(RecordKind.BOUNDARY, at, encoder.parts(body, None), scalars={"loss": 0.5}))
        at += 10 * step
        parts = encoder.parts({**body, "at": at}, None)
        log.append(
            NO_TENSORS,
            EncodedContent(RecordKind.BOUNDARY, at, parts, b"of the state", scalars={"loss": 0.4}, covered=10 * step),
        )
        for last in (BODY, {"lr": 0.1}, {"lr": step}):
            both = encoder.whole(last, None) | encoder.parts({**body, "n": step}, None)
            at += 1
            log.append(
                Payload.of(tensors()[:2]), EncodedContent(RecordKind.UNIT, at, both, b"87654321", scalars={"loss": 0.25})
            )
        if step == 3:
            log.forget_definitions()
    log.close()
    [path] = (tmp_path / "rank0" / "log").glob("*.seg")
    assert assert_reads_the_same(path) == set(Codec)
    first = DocumentSegment(path).entries()[1]
    assert first.tensors == {name: stored(tensor) for name, tensor in tensors()}
    assert first.body == comparable(BODY)
    bare.close()


def test_a_run_is_read_from_the_document(tmp_path: Path) -> None:
    trainer = open_run(tmp_path / "run")
    trainer.recover()
    trainer.train(GOLDEN_STEPS)
    trainer.journal.close()
    assert_is_readable(tmp_path / "run")


def assert_is_readable(run: Path) -> None:
    """The document's reader gives what the product's gives, for every file of a run."""
    for path in (run / "rank0" / "log").glob("*.seg"):
        assert_reads_the_same(path)
    for folder in (run / "rank0" / "checkpoints").iterdir():
        manifest, contents, meta = read_checkpoint(folder)
        with Checkpoint(folder) as checkpoint:
            assert manifest == checkpoint.manifest
            assert meta == comparable(checkpoint.meta())
            for name in checkpoint.names():
                array = checkpoint.read(name)
                assert isinstance(array, Array)
                assert contents[name] == array.data.tobytes()
    catalog = Catalog.open(run / "rank0")
    expected = {f"segment/{row.ordinal:010d}": asdict(row) for row in catalog.segments()}
    expected |= {f"checkpoint/{row.name}": asdict(row) for row in catalog.checkpoints()}
    expected |= {f"timeline/{row.number:06d}": asdict(row) for row in catalog.timelines()}
    expected |= {"run": asdict(catalog.run()), "watermarks": asdict(catalog.watermarks())}  # type: ignore[call-overload]
    measured = catalog.read(lambda tables: tables.get("measured", MeasuredRow))
    expected |= {} if measured is None else {"measured": asdict(measured)}
    catalog.close()
    with lmdb.open(str(run / "rank0" / "catalog.lmdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        found = {bytes(key): bytes(value) for key, value in txn.cursor()}
    rows = {key: value for key, value in found.items() if not key.startswith(b"record/")}
    assert {key.decode(): checked_row(key, value) for key, value in rows.items()} == expected
    files = {row["ordinal"]: row["file"] for key, row in expected.items() if key.startswith("segment/")}
    for key in sorted(found.keys() - rows.keys()):
        ordinal, records = checked_records(key, found[key])
        raw = (run / "rank0" / "log" / files[ordinal]).read_bytes()
        assert all(raw[offset : offset + 64] == head for offset, head in records)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A run that was written when format version 3 was new."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    return tmp_path / "run"


def test_golden_run_is_sound_and_read_from_the_document(golden: Path) -> None:
    assert not problems_of(golden)
    assert_is_readable(golden)


def test_golden_run_goes_on(golden: Path) -> None:
    trainer = open_run(golden)
    report = trainer.recover()
    assert (report.step, report.exact) == (GOLDEN_STEPS, True)
    assert trainer.state.everything() == uninterrupted(GOLDEN_STEPS, sizes=(7, 300)).everything()
    trainer.train(GOLDEN_STEPS + 6)
    trainer.journal.close()
    again = open_run(golden)
    assert again.recover().step == GOLDEN_STEPS + 6
    again.journal.close()


def write_golden(target: Path) -> None:
    """Make the golden run anew: only for a new version of the format, under a new name."""
    for until, step in ((GOLDEN_STEPS, None), (GOLDEN_STEPS, 9)):
        trainer = open_run(target / "run")
        trainer.recover(step)
        trainer.train(until)
        trainer.journal.close()
    for name in ("owner.lock", "owner.json", "catalog.lmdb-lock"):
        (target / "run" / "rank0" / name).unlink()
    with tarfile.open(target / GOLDEN.name, "w:xz") as archive:
        archive.add(target / "run", "run", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
