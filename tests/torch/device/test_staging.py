"""Staging on the twin of a GPU (`twin.py`): what is logged is what the gradients were, whatever order the device works in.

Training that is staged there is recovered exactly, and goes on where staging fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.torch import nets
from tests.torch.device.twin import Twin, devices
from tests.torch.lab import Attempt, prove_exact
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import AnyArray, Array, DeviceArray, SparseArray
from tranlogs.checkpoints import Snapshot, SnapshotPool
from tranlogs.log.layout import Layout, Payload
from tranlogs_torch.capture.staging import Staging
from tranlogs_torch.capture.staging_plan import StagingLimits
from tranlogs_torch.loops import training_run
from tranlogs_torch.tensors import arrays
from tranlogs_torch.tensors.arrays import from_array, spec_of

TINY = StagingLimits(
    ring_bytes_min=64, ring_bytes_max=256, ring_seconds_max=0.0, transfer_bytes=48, staged_bytes_min=64, fetch_bytes=128
)


def layout_of(tensors: Sequence[torch.Tensor]) -> Layout:
    return Layout(spec_of(f"t{i}", tensor) for i, tensor in enumerate(tensors))


def contents_of(payload: Payload) -> Iterator[tuple[str, AnyArray | None]]:
    """Yield the tensors of a payload by name, as copies; None stands for an absent one."""
    if payload.wait is not None:
        payload.wait()
    data = np.concatenate(payload.buffers) if payload.buffers else np.empty(0, np.uint8)
    at = 0
    for i, spec in enumerate(payload.layout.tensors):
        if i in payload.absent:
            yield spec.name, None
            continue
        form = payload.sparse.get(i)
        if form is None:
            array = Array(spec.dtype, spec.local_shape, data[at : at + spec.nbytes], spec.strides)
            if spec.piece is not None:
                array.piece, array.whole = spec.piece, spec.shape
            yield spec.name, array
            at += spec.nbytes
            continue
        first, second = payload.layout.sparse_sizes(i, form)
        indices = Array("int64", (form.dims, form.nnz), data[at : at + first])
        values = Array(spec.dtype, (form.nnz, *spec.shape[form.dims :]), data[at + first : at + first + second])
        yield spec.name, SparseArray(spec.shape, indices, values, form.is_coalesced)
        at += first + second
    assert at == data.nbytes, f"the buffers hold {data.nbytes} bytes, the layout wants {at}"
    if payload.release is not None:
        payload.release()


def read(payload: Payload) -> list[AnyArray | None]:
    """What a writer would write; the space is released."""
    return [content for _, content in contents_of(payload)]


def assert_holds(content: AnyArray | None, tensor: torch.Tensor) -> None:
    assert content is not None
    back = from_array(content)
    if isinstance(content, SparseArray):
        assert torch.equal(back._indices(), tensor._indices())
        assert torch.equal(back._values(), tensor._values())
        assert content.is_coalesced == tensor.is_coalesced()
        return
    assert back.shape == tensor.shape
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor.resolve_conj().resolve_neg())


@pytest.fixture
def twin() -> Twin:
    return Twin()


# One payload.


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.arange(2.0)[::2],
        torch.arange(60.0).reshape(3, 4, 5)[:, ::2].transpose(0, 2),
        torch.tensor([3 + 4j, 1 - 2j]).conj(),
        torch.tensor([3 + 4j, 1 - 2j]).conj().imag,
        torch.ones(1).expand(5),
        torch.empty(0, 3),
        torch.tensor(2.5),
        torch.arange(5, dtype=torch.bfloat16),
        torch.arange(7, dtype=torch.float32).to(torch.float8_e4m3fn),
        torch.tensor([True, False, True]),
    ],
    ids=lambda t: f"{t.dtype} {list(t.shape)} {t.stride()}",
)
def test_layouts_and_dtypes_are_kept(tensor: torch.Tensor, twin: Twin) -> None:
    others = [torch.arange(3, dtype=torch.uint8), tensor, torch.ones(3, dtype=torch.float64)]
    contents = read(Staging(devices(twin)).stage(layout_of(others), others))
    expected = Payload.of([("t1", arrays.to_array(tensor))])
    found = contents[1]
    assert isinstance(found, Array)
    assert found.data.tobytes() == b"".join(buffer.tobytes() for buffer in expected.buffers)
    (spec,) = expected.layout.tensors
    assert spec_of("t1", tensor) == spec
    for content, one in zip(contents, others, strict=True):
        if one.dtype is not torch.float8_e4m3fn:
            assert_holds(content, one)


def test_another_form_than_the_layout_says_is_refused_and_other_strides_are_not(twin: Twin) -> None:
    staging = Staging(devices(twin))
    first = [torch.randn(4, 6), torch.randn(3)]
    layout = layout_of(first)
    read(staging.stage(layout, first))
    with pytest.raises(ValueError, match=r"t1 is float32\[3\] in the layout, but the tensor is torch.float64\[3\]"):
        staging.stage(layout, [first[0], first[1].double()])
    with pytest.raises(ValueError, match=r"t1 is float32\[3\] in the layout, but the tensor is torch.float32\[1\]"):
        staging.stage(layout, [first[0], first[1][:1]])
    with pytest.raises(ValueError, match="1 tensors for a layout of 2, of which 0 are absent"):
        staging.stage(layout, first[:1])
    strided = torch.randn(6, 4).t()
    assert_holds(read(staging.stage(layout, [strided, first[1]]))[0], strided)


# Many payloads.


def test_a_writer_that_hangs_makes_the_log_unavailable_and_one_that_drops_does_not(twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    layout = layout_of([torch.empty(64)])
    for _ in range(5):
        staging.stage(layout, [torch.ones(64)])  # is dropped, and gives its space back
    kept = staging.stage(layout, [torch.full((64,), 3.0)])
    with pytest.raises(LogUnavailable, match="did not free"):
        staging.stage(layout, [torch.ones(64)])
    assert_holds(read(kept)[0], torch.full((64,), 3.0))
    read(staging.stage(layout, [torch.ones(64)]))


def test_no_memory_at_all_makes_the_log_unavailable() -> None:
    for twin, what in ((Twin(free=10), "out of memory"), (_NoPinning(), "cannot pin")):
        staging = Staging(devices(twin), TINY)
        with pytest.raises(LogUnavailable, match=what):
            staging.stage(layout_of([torch.ones(64)]), [torch.ones(64)])


class _NoPinning(Twin):
    def pin(self, nbytes: int) -> torch.Tensor:
        raise RuntimeError("the host has no memory")


def test_an_error_of_the_device_comes_to_the_writer_and_frees_the_space(twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    layout = layout_of([torch.empty(64)])
    payload = staging.stage(layout, [torch.ones(64)])
    twin.fails = True
    with pytest.raises(RuntimeError, match="the device failed"):
        read(payload)
    del payload
    dropped = staging.stage(layout, [torch.ones(64)])
    del dropped  # the failure is not raised where nobody could catch it
    twin.fails = False
    twin.finish()
    assert_holds(read(staging.stage(layout, [torch.zeros(64)]))[0], torch.zeros(64))


def test_a_buffer_is_overwritten_only_after_its_transfers(twin: Twin) -> None:
    """Nobody waits on the host, so only the device's own waits make it do any transfer at all."""
    staging = Staging(devices(twin), StagingLimits(transfer_bytes=48))
    layout = layout_of([torch.empty(30)])
    payloads = [staging.stage(layout, [torch.full((30,), float(step))]) for step in range(6)]
    assert len(twin.allocated) == 2
    assert twin.waited_in == []
    for step, payload in enumerate(payloads):
        assert_holds(read(payload)[0], torch.full((30,), float(step)))


@settings(max_examples=campaign.examples(80), deadline=None)
@given(st.data(), st.integers(400, 3000))
def test_any_order_that_streams_and_events_allow_is_right(data: st.DataObject, free: int) -> None:
    """Training's kernels are work of its stream here; they overwrite the gradients while earlier steps are transferred."""
    twin = Twin(is_training_eager=False, free=free)
    twin.draw = lambda: data.draw(st.booleans())
    staging = Staging(devices(twin), replace(TINY, ring_bytes_min=512, ring_bytes_max=512))
    gradients = [torch.full((n,), -1.0, dtype=d) for n, d in ((10, torch.float32), (3, torch.bfloat16), (12, torch.float32))]
    layouts = [layout_of(gradients), layout_of(gradients[:2])]
    waiting: list[tuple[int, Payload]] = []

    def demand(step: int, payload: Payload) -> None:
        for content in read(payload):
            assert content is not None
            assert set(from_array(content).float().tolist()) == {float(step)}

    def kernel(step: int) -> None:
        for gradient in gradients:
            gradient.fill_(step)

    for step in range(data.draw(st.integers(1, 8))):
        twin.run(twin.training(), partial(kernel, step))
        some = data.draw(st.booleans())
        while True:
            try:
                payload = staging.stage(layouts[some], gradients[:2] if some else gradients)
                break
            except LogUnavailable:
                demand(*waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))
        waiting.append((step, payload))
    for step, payload in waiting:
        demand(step, payload)


# Snapshots and after-images.


@settings(max_examples=campaign.examples(60), deadline=None)
@given(st.lists(st.sampled_from([0, 1, 5, 31, 32, 33, 64, 200]), max_size=8), st.data())
def test_snapshots_come_through_windows_in_c_order(sizes: list[int], data: st.DataObject) -> None:
    twin = Twin(is_training_eager=False)
    twin.draw = lambda: data.draw(st.booleans())
    staging = Staging(devices(twin), TINY)
    tensors: list[torch.Tensor] = []
    for size in sizes:
        dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.uint8]))
        tensor = torch.arange(2 * size).to(dtype).view(2, size)
        tensors.append(data.draw(st.sampled_from([tensor, tensor.t(), tensor[:, ::2]])))
    snapshot = Snapshot({f"t{i}": staging.to_array(tensor) for i, tensor in enumerate(tensors)}, {})
    snapshot.encode(None)
    SnapshotPool().hold(snapshot)
    for (_, array), tensor in zip(snapshot.flat, tensors, strict=True):
        assert not isinstance(array, DeviceArray)
        assert array.data.tobytes() == arrays.flat_bytes(tensor.contiguous()).tobytes()
        assert (array.shape, array.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    assert len(twin.pinned) <= 2
    assert set(twin.pinned) <= {TINY.fetch_bytes}
    assert all(nbytes <= TINY.fetch_bytes for nbytes in twin.transfers)


# Training.


class Twins:
    """The twin of each session."""

    def __init__(self) -> None:
        self.made: list[tuple[Twin, Staging]] = []
        self.fails_at: int | None = None  # payload of each staging whose transfers fail

    def make(self) -> Staging:
        twin = Twin()
        limits = StagingLimits(ring_bytes_min=1024, ring_bytes_max=2048, transfer_bytes=256, fetch_bytes=512)
        staging = _Failing(twin, limits, self.fails_at)
        self.made.append((twin, staging))
        return staging


class _Failing(Staging):
    def __init__(self, twin: Twin, limits: StagingLimits, fails_at: int | None) -> None:
        super().__init__(devices(twin), limits)
        self._twin, self._fails_at = twin, fails_at

    def stage(self, *arguments: Any) -> Payload:
        payload = super().stage(*arguments)
        if self.statistics.payloads == self._fails_at:

            def lost() -> None:
                raise LogUnavailable("the copy failed on the device")

            payload.wait = lost
        return payload


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Twins]:
    found = Twins()
    monkeypatch.setattr(training_run, "Staging", found.make)
    yield found
    for twin, _ in found.made:
        twin.finish()


def training(attempt: Attempt, *, clips: bool = False, sparse: bool = False, clamps: bool = False) -> None:
    nets.seed()
    model = nets.Mixed(sparse=sparse)
    optimizer = attempt.wrap((torch.optim.SGD if sparse else torch.optim.AdamW)(model.parameters(), 0.05), model)
    attempt.keep(model=model, optimizer=optimizer)
    attempt.start(optimizer)
    for batch in optimizer.batches(nets.tokens(), until=14):
        optimizer.zero_grad(set_to_none=False)  # writes to the gradients whose copies may be under way
        nets.loss_of(model, batch).backward()
        if clips:
            optimizer.clip_grad_norm_(0.1)
        attempt.tick()
        optimizer.step()
        if clamps:
            model.hidden.weight.data.clamp_(-0.1, 0.1)
    optimizer.close()


@pytest.mark.parametrize(
    "options",
    [{"clips": True, "clamps": True}, {"sparse": True}],
    ids=str,
)
def test_a_run_comes_back_exactly(options: dict[str, Any], twins: Twins, tmp_path: Path) -> None:
    prove_exact(partial(training, **options), tmp_path / "run", [9], writer="thread")
    twin, staging = twins.made[-1]
    assert staging.statistics.payloads > 0
    assert max(twin.transfers) <= 512


def test_a_device_that_fails_suspends_logging_and_training_goes_on(
    twins: Twins, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    twins.fails_at = 4
    prove_exact(training, tmp_path / "run", writer="thread")
    assert [r.getMessage() for r in caplog.records if "the copy failed on the device" in r.getMessage()]
