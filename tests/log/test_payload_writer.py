"""Payloads on their way into a segment: cut into pieces, hashed, compressed where it pays, on this thread or beside it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.bare_log import BareLog
from tests.support.faults import failing
from tranlogs.base.config import MIB, PAYLOAD_THREAD_BYTES_MIN
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import Bytes, TensorSpec, dense
from tranlogs.encoding.compression import Codec, decompress
from tranlogs.log import payload_writer, segment_file, writer_thread
from tranlogs.log.layout import PIECE_BYTES_MAX, Layout, Payload
from tranlogs.log.payload_writer import CompressionChoices, PieceWriter, pieces_of
from tranlogs.log.record_format import HEAD, EntryKind, checksum_of
from tranlogs.log.segment_file import SegmentFile
from tranlogs.log.writer_thread import WriterThread


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[SegmentFile]:
    made = segment_file.create(tmp_path / segment_file.segment_name(1, 2), 1, 2, 16 * MIB)
    yield made
    made.close()


@pytest.fixture
def thread() -> Iterator[WriterThread]:
    made = WriterThread(MIB)
    yield made
    made.stop()


def noise(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def payload_of(*contents: Bytes) -> Payload:
    return Payload(Layout([TensorSpec(f"w{i}", "uint8", (one.nbytes,)) for i, one in enumerate(contents)]), list(contents))


def read_back(writer: PieceWriter, payload: Payload, stored: bytes) -> bytes:
    """Undo what the writer did, by what it says of the pieces."""
    ends, sums = payload.layout.pieces(payload.absent, payload.sparse), np.frombuffer(writer.sums, "<u8").tolist()
    sizes = np.frombuffer(writer.codecs, "<u4", len(ends)).tolist() if writer.codecs else np.diff([0, *ends]).tolist()
    codecs = writer.codecs[4 * len(ends) :] or bytes(len(ends))
    found, at, start = b"", 0, 0
    for end, size, codec, total in zip(ends, sizes, codecs, sums, strict=True):
        piece = np.frombuffer(stored, np.uint8)[at : at + size]
        assert checksum_of(piece) == total
        out = np.empty(end - start, np.uint8)
        decompress(codec, piece, out)
        found, at, start = found + out.tobytes(), at + size, end
    assert at == writer.stored_bytes
    return found


@given(st.lists(st.integers(0, 50), max_size=20), st.data())
def test_pieces_are_the_bytes_however_they_lie(sizes: list[int], data: st.DataObject) -> None:
    raw = noise(sum(sizes))
    cuts = sorted(data.draw(st.lists(st.integers(0, raw.nbytes), max_size=12)))
    ends = [*sorted(set(data.draw(st.lists(st.integers(1, raw.nbytes), max_size=12)))), raw.nbytes] if raw.nbytes else []
    ends = sorted(set(ends))
    buffers = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, raw.nbytes], strict=True)]
    found = pieces_of(buffers, ends)
    assert [piece.tobytes() for piece in found] == [raw[start:end].tobytes() for start, end in itertools.pairwise([0, *ends])]


def test_a_piece_that_lies_in_one_buffer_is_not_copied() -> None:
    raw = noise(1000)
    first, second, third = pieces_of([raw[:600], raw[600:]], [600, 700, 1000])
    assert all(np.shares_memory(piece, raw) for piece in (first, second, third))


@pytest.mark.parametrize("beside", [False, True])
@settings(max_examples=campaign.examples(25), deadline=None)
@given(
    contents=st.lists(
        st.tuples(
            st.sampled_from(["noise", "zeros", "rows"]),
            st.sampled_from([0, 1, 300, 4096, 300_000, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 4]),
        ),
        max_size=6,
    )
)
def test_any_payload_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, beside: bool, contents: list[tuple[str, int]]
) -> None:
    arrays = []
    for i, (kind, size) in enumerate(contents):
        array = noise(size, i)
        if kind != "noise":
            array[0 if kind == "zeros" else size // 50 :] = 0
        arrays.append(array)
    payload, path = payload_of(*arrays), tmp_path_factory.mktemp("x") / segment_file.segment_name(1, 2)
    made, threads = segment_file.create(path, 1, 2, 16 * MIB), WriterThread(MIB)
    try:
        writer = PieceWriter(payload, made, 640, CompressionChoices())
        if beside:
            writer.start(threads)
        writer.prepare()
        if writer.pending:
            made.write(writer.pending, 640 + HEAD.size)
        raw = path.read_bytes()[640 + HEAD.size :][: writer.stored_bytes]
        assert read_back(writer, payload, raw) == b"".join(array.tobytes() for array in arrays)
        assert writer.stored_bytes <= payload.nbytes
        assert bool(writer.pending) == (not beside and bool(writer.sums))
    finally:
        threads.stop()
        made.close()


def test_pieces_are_compressed_one_by_one(segment: SegmentFile) -> None:
    zeros, halves = np.zeros(PIECE_BYTES_MAX, np.uint8), noise(PIECE_BYTES_MAX)
    halves.view(np.uint16)[0::2] = 0
    payload = payload_of(zeros, noise(PIECE_BYTES_MAX), halves)
    writer = PieceWriter(payload, segment, 0, CompressionChoices())
    writer.prepare()
    assert list(writer.codecs[12:]) == [Codec.ZERO, Codec.RAW, Codec.HIGH16]
    assert np.frombuffer(writer.codecs, "<u4", 3).tolist() == [0, PIECE_BYTES_MAX, PIECE_BYTES_MAX // 2]
    assert writer.stored_bytes == 3 * PIECE_BYTES_MAX // 2


def test_pieces_are_written_together_up_to_4_mib(monkeypatch: pytest.MonkeyPatch, segment: SegmentFile) -> None:
    payload = payload_of(*(noise(PIECE_BYTES_MAX, seed) for seed in range(6)))
    writes: list[tuple[int, int]] = []  # number of pieces, and where they go
    monkeypatch.setattr(segment, "write", lambda pieces, offset: writes.append((len(pieces), offset)))
    PieceWriter(payload, segment, 0, CompressionChoices()).wait()
    assert writes == [(4, HEAD.size), (2, HEAD.size + 4 * PIECE_BYTES_MAX)]


def test_a_layout_that_never_shrinks_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch, segment: SegmentFile) -> None:
    looked: list[bool] = []
    compress = payload_writer.compress

    def counted(data: Bytes) -> tuple[Codec, Bytes]:
        looked[-1] = True
        return compress(data)

    monkeypatch.setattr(payload_writer, "compress", counted)
    choices, dense_noise = CompressionChoices(), payload_of(noise(1000))
    for _ in range(100):
        looked.append(False)
        PieceWriter(dense_noise, segment, 0, choices).prepare()
    assert all(looked[:8])
    assert 3 <= sum(looked[8:]) <= 10
    other = payload_of(noise(1001))
    looked.append(False)
    PieceWriter(other, segment, 0, choices).prepare()
    assert looked[-1]  # another layout has its own count
    shrinking = payload_of(np.zeros(1000, np.uint8))  # the same layout, which holds zeros from now on
    for _ in range(40):
        looked.append(False)
        PieceWriter(shrinking, segment, 0, choices).prepare()
    assert all(looked[-20:])


def test_a_payload_that_is_handed_over_is_written_while_this_thread_goes_on(segment: SegmentFile, thread: WriterThread) -> None:
    gate, values = threading.Event(), noise(2 * MIB)
    payload = Payload(Layout([TensorSpec("w", "uint8", (values.nbytes,))]), [values], wait=lambda: gate.wait() and None)
    writer = PieceWriter(payload, segment, 0, CompressionChoices())
    writer.start(thread)
    assert writer.stored_bytes == 0
    gate.set()
    writer.wait()
    before = values.copy()
    values[:] = 0  # from here on the memory may change
    writer.prepare()
    assert writer.pending == []
    assert segment.path.read_bytes()[HEAD.size :][: values.nbytes] == before.tobytes()


@pytest.mark.parametrize("nbytes", [PAYLOAD_THREAD_BYTES_MIN - 1, PAYLOAD_THREAD_BYTES_MIN])
def test_small_payloads_are_not_handed_over(tmp_path: Path, nbytes: int) -> None:
    bare, threads = BareLog(tmp_path), list[int]()
    log = bare.open()
    payload = payload_of(noise(nbytes))
    payload.wait = lambda: threads.append(threading.get_ident())
    log.append(EntryKind.STEP, 1, payload, log.encoder.whole({}, None))
    assert (threads == [threading.get_ident()]) == (nbytes < PAYLOAD_THREAD_BYTES_MIN)
    log.close()
    bare.close()


def test_a_small_payload_that_is_waited_for_is_in_the_file(segment: SegmentFile) -> None:
    values = noise(100)
    writer = PieceWriter(payload_of(values), segment, 0, CompressionChoices())
    writer.wait()
    wanted = values.tobytes()
    values[:] = 0
    writer.prepare()
    assert writer.pending == []
    assert segment.path.read_bytes()[HEAD.size :][:100] == wanted


@pytest.mark.parametrize("waits", [True, False])
def test_a_failure_beside_is_raised_with_the_record(segment: SegmentFile, thread: WriterThread, waits: bool) -> None:
    writer = PieceWriter(payload_of(noise(2 * MIB)), segment, 0, CompressionChoices())
    with failing("log.write=enospc"):
        writer.start(thread)
        writer.settle()
    if waits:
        writer.wait()  # the payload's memory may change: that is all it says
    with pytest.raises(LogUnavailable, match=r"log\.write"):
        writer.prepare()
    again = PieceWriter(payload_of(noise(2 * MIB)), segment, 0, CompressionChoices())
    again.start(thread)  # the thread goes on
    again.wait()


def test_no_thread_to_be_had_means_this_one_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object) -> threading.Thread:
        raise LogUnavailable("no thread can be started")

    monkeypatch.setattr(writer_thread, "start_thread", refused)
    values, bare = noise(2 * MIB), BareLog(tmp_path)
    log = bare.open()
    log.append(EntryKind.STEP, 1, Payload.of([("w", dense(values))]), log.encoder.whole({}, None))
    log.close()
    assert bare.contents()[0][2] == {"w": values.tobytes()}
    bare.close()


@pytest.mark.parametrize("nbytes", [1000, 2 * MIB])
def test_a_payload_is_released_once_whether_it_is_committed_or_not(tmp_path: Path, nbytes: int) -> None:
    released, bare = list[str](), BareLog(tmp_path)
    log = bare.open()

    def begun(name: str) -> Payload:
        made = payload_of(noise(nbytes))
        made.release = lambda: released.append(name)
        return made

    log.commit(log.begin(begun("committed")), EntryKind.STEP, 1, log.encoder.whole({}, None))
    aborted = log.begin(begun("aborted"))
    aborted.abort()
    aborted.abort()
    log.begin(begun("dropped"))
    with failing("log.before_commit=eio"), pytest.raises(LogUnavailable):
        log.commit(log.begin(begun("failed")), EntryKind.STEP, 2, log.encoder.whole({}, None))
    log.begin(begun("closed"))
    log.close()
    assert released == ["committed", "aborted", "dropped", "failed", "closed"]
    bare.close()
