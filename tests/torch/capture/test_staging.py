"""Staging on the twin of a GPU (`twin.py`): what is logged is what the gradients were, whatever order the device works in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.torch.capture.payloads import contents_of
from tests.torch.device.twin import Twin, devices
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import AnyArray, Array, DeviceArray, SparseArray, TensorSpec
from tranlogs.checkpoints import Snapshot, SnapshotPool
from tranlogs.log.layout import Layout, Payload
from tranlogs_torch.capture.staging import Staging
from tranlogs_torch.capture.staging_plan import StagingLimits
from tranlogs_torch.tensors import arrays
from tranlogs_torch.tensors.arrays import from_array, spec_of

TINY = StagingLimits(
    ring_bytes_min=64, ring_bytes_max=256, ring_seconds_max=0.0, transfer_bytes=48, staged_bytes_min=64, fetch_bytes=128
)


def layout_of(tensors: Sequence[torch.Tensor]) -> Layout:
    return Layout(spec_of(f"t{i}", tensor) for i, tensor in enumerate(tensors))


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


def test_gradients_that_are_overwritten_after_staging_are_logged_as_they_were(twin: Twin) -> None:
    staging = Staging(devices(twin))
    gradients = [torch.randn(7, 5), torch.randn(3), torch.randn(1000)]
    before = [g.clone() for g in gradients]
    payload = staging.stage(layout_of(gradients), gradients)
    for gradient in gradients:
        gradient.zero_()
    assert twin.waited_in == []  # the training thread waited for nothing
    for content, was in zip(read(payload), before, strict=True):
        assert_holds(content, was)


def test_nothing_has_come_before_the_writer_waits(twin: Twin) -> None:
    gradients = [torch.randn(100)]
    payload = Staging(devices(twin)).stage(layout_of(gradients), gradients)
    assert set(payload.buffers[0].tolist()) == {0xA5}
    assert payload.wait is not None
    payload.wait()
    assert payload.buffers[0].tobytes() == gradients[0].numpy().tobytes()


def test_one_dtype_makes_one_buffer_and_transfers_are_bounded(twin: Twin) -> None:
    staging = Staging(devices(twin), StagingLimits(transfer_bytes=1000))
    gradients = [torch.randn(n) for n in (1, 3, 700, 5)]
    payload = staging.stage(layout_of(gradients), gradients)
    assert len(payload.buffers) == 1
    assert twin.transfers == [1000, 1000, 836]
    assert payload.nbytes == 2836


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


def test_absent_sparse_and_near_tensors_lie_among_the_others(twin: Twin) -> None:
    sparse = torch.sparse_coo_tensor([[3, 1, 3]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (4, 2), check_invariants=False)
    tensors = [torch.randn(5), sparse, torch.randn(3), torch.randn(2)]
    layout = Layout(
        [
            spec_of("a", tensors[0]),
            TensorSpec("none", "float32", (9,)),
            spec_of("b", sparse),
            spec_of("c", tensors[2]),
            spec_of("d", tensors[3]),
        ]
    )
    payload = Staging(devices(twin)).stage(layout, tensors, frozenset({1}))
    was = [t.clone() for t in tensors]
    sparse._values().zero_()
    contents = read(payload)
    assert contents[1] is None
    for content, tensor in zip([contents[0], *contents[2:]], was, strict=True):
        assert_holds(content, tensor)


def test_without_a_device_all_is_copied_at_once() -> None:
    tensors = [torch.randn(2, 3).t(), torch.randn(4).to_sparse()]
    payload = Staging().stage(layout_of(tensors), tensors)
    assert payload.wait is None
    was = [t.clone() for t in tensors]
    tensors[0].zero_()
    for content, tensor in zip(read(payload), was, strict=True):
        assert_holds(content, tensor)


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


def test_payloads_wrap_around_the_ring_and_may_be_released_out_of_order(twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    layout = layout_of([torch.empty(25)])  # 100 bytes, 128 of the ring; two fit into 256
    waiting: list[tuple[Payload, torch.Tensor]] = []
    seen_split = False
    for step in range(40):
        gradient = torch.randn(25)
        payload = staging.stage(layout, [gradient])
        seen_split |= len(payload.buffers) > 1
        waiting.append((payload, gradient.clone()))
        gradient.zero_()
        if len(waiting) == 2:
            for payload, was in waiting if step % 3 else reversed(waiting):
                assert_holds(read(payload)[0], was)
            waiting.clear()
    assert not seen_split  # an empty ring begins anew
    assert twin.pinned == [256]
    assert staging.statistics.payloads == 40
    assert staging.statistics.nbytes == 4000
    assert staging.statistics.waits == 0


def test_a_payload_may_go_on_at_the_beginning_of_the_ring(twin: Twin) -> None:
    staging = Staging(devices(twin), StagingLimits(ring_bytes_min=256, ring_bytes_max=256))
    small, large = torch.randn(32), torch.randn(40)  # with the second, 192 of 256 bytes; then 160
    first = staging.stage(layout_of([small]), [small])
    second = staging.stage(layout_of([small[:16]]), [small[:16]])
    read(first)
    third = staging.stage(layout_of([large]), [large])
    assert [buffer.nbytes for buffer in third.buffers] == [64, 96]
    assert_holds(read(third)[0], large)
    assert_holds(read(second)[0], small[:16])
    assert twin.pinned == [256]


def test_a_full_ring_waits_for_a_slow_writer_and_says_so(twin: Twin) -> None:
    limits = StagingLimits(ring_bytes_min=64, ring_bytes_max=128, ring_seconds_max=60.0)
    staging = Staging(devices(twin), limits)
    layout = layout_of([torch.empty(32)])  # the ring holds one
    payload = staging.stage(layout, [torch.ones(32)])
    go = threading.Event()

    def writer() -> None:
        go.wait()
        assert_holds(read(payload)[0], torch.ones(32))

    thread = threading.Thread(target=writer, name="tranlogs-writer")
    thread.start()
    waits = _WaitsNoted(staging, go)
    second = waits.stage(layout, [torch.zeros(32)])
    thread.join()
    assert twin.waited_in == ["tranlogs-writer"]
    assert_holds(read(second)[0], torch.zeros(32))
    assert staging.statistics.waits == 1
    assert staging.statistics.wait_seconds > 0


class _WaitsNoted:
    """Lets a writer go on only once the training thread waits for it."""

    def __init__(self, staging: Staging, go: threading.Event) -> None:
        self._staging, self._go = staging, go

    def stage(self, layout: Layout, tensors: list[torch.Tensor]) -> Payload:
        ring: Any = self._staging._ring
        wait = ring._lock.wait

        def waiting(seconds: float) -> bool:
            self._go.set()
            return bool(wait(seconds))

        ring._lock.wait = waiting
        return self._staging.stage(layout, tensors)


def test_a_writer_that_hangs_makes_the_log_unavailable(twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    layout = layout_of([torch.empty(64)])
    kept = staging.stage(layout, [torch.ones(64)])
    with pytest.raises(LogUnavailable, match="did not free"):
        staging.stage(layout, [torch.ones(64)])
    assert_holds(read(kept)[0], torch.ones(64))
    read(staging.stage(layout, [torch.ones(64)]))


def test_a_payload_that_is_dropped_gives_its_space_back(twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    layout = layout_of([torch.empty(64)])
    for _ in range(5):
        staging.stage(layout, [torch.ones(64)])
    last = staging.stage(layout, [torch.full((64,), 3.0)])
    assert_holds(read(last)[0], torch.full((64,), 3.0))


def test_a_larger_payload_gets_a_larger_ring_while_the_old_one_is_in_use(twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    small, large = torch.randn(10), torch.randn(1000)
    first = staging.stage(layout_of([small]), [small])
    second = staging.stage(layout_of([large]), [large])
    third = staging.stage(layout_of([small]), [small])
    assert twin.pinned == [128, 4096]
    assert staging.statistics.ring_bytes == 4096
    for payload, tensor in ((third, small), (first, small), (second, large)):
        assert_holds(read(payload)[0], tensor)


@pytest.mark.parametrize(
    ("nbytes", "ring"),
    [(0, 64), (16, 64), (33, 128), (100, 256), (128, 256), (129, 256), (256, 256), (257, 512), (1000, 1024)],
)
def test_size_of_the_ring(nbytes: int, ring: int) -> None:
    assert TINY.ring_bytes(nbytes) == ring


def test_a_device_with_little_memory_gets_small_buffers_and_rounds() -> None:
    twin = Twin(free=1200)
    staging = Staging(devices(twin), TINY)
    gradients = [torch.randn(30) for _ in range(10)]  # 1200 bytes; a quarter of what is free holds two
    payload = staging.stage(layout_of(gradients), gradients)
    was = [g.clone() for g in gradients]
    for gradient in gradients:
        gradient.zero_()
    assert max(twin.allocated) <= 300 + 16
    assert twin.waited_in == []
    assert len(payload.buffers) == 1
    for content, tensor in zip(read(payload), was, strict=True):
        assert_holds(content, tensor)


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


@settings(max_examples=campaign.examples(150), deadline=None)
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


@pytest.mark.parametrize("every_step", [True, False])
def test_after_images(every_step: bool, twin: Twin) -> None:
    staging = Staging(devices(twin), TINY)
    tensors = [
        torch.randn(4, 6).t(),
        torch.randn(70),
        torch.randn(3, 4)[:, ::2],
        torch.tensor(3.0),
        torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    ]
    sparse = torch.randn(4).to_sparse()
    named = [(f"t{i}", staging.to_array(tensor)) for i, tensor in enumerate([*tensors, sparse])]
    payload = staging.after_image([*named[:2], ("none", None), *named[2:]], every_step=every_step)
    expected = Payload.of([(f"t{i}", arrays.to_array(tensor)) for i, tensor in enumerate([*tensors, sparse])])
    assert [spec for spec in payload.layout.tensors if spec.name != "none"] == list(expected.layout.tensors)
    if payload.wait is not None:
        payload.wait()
    assert np.concatenate(payload.buffers).tobytes() == np.concatenate(expected.buffers).tobytes()
    assert payload.absent == {2}
    assert (payload.wait is not None) == every_step
