"""Gradients that are still on their way when the step goes on, as from a GPU: the log waits for them, training does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.torch import nets
from tests.torch.lab import Attempt, prove_exact
from tranlogs.types import Array, Staged
from tranlogs_torch import session
from tranlogs_torch.staging import Staging

FAR = b"\xa5"  # what the memory of the host holds before a copy has come


class Late(Staging):
    """Copies of which nothing is there before the log asks for them; the device, so to speak, has them in time."""

    def __init__(self) -> None:
        super().__init__()
        self.started = self.waited = 0

    def is_far(self, tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided

    def copy(self, device: torch.device, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None]]:
        sources = [tensor.clone(memory_format=torch.preserve_format) for tensor in tensors]
        hosts = [torch.empty_like(tensor) for tensor in tensors]
        for host in hosts:
            host.untyped_storage().fill_(FAR[0])
        self.started += 1

        def arrived() -> None:
            assert threading.current_thread().name == "tranlogs-writer", "the training thread waits for the device"
            self.waited += 1
            for host, source in zip(hosts, sources, strict=True):
                host.copy_(source)

        return hosts, arrived


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Late]:
    """Every session stages its gradients; those that were made."""
    found: list[Late] = []

    def make() -> Late:
        found.append(Late())
        return found[-1]

    monkeypatch.setattr(session, "Staging", make)
    return found


def training(attempt: Attempt, *, clips: bool = False, sparse: bool = False) -> None:
    nets.seed()
    model = nets.Mixed(sparse=sparse)
    kind = torch.optim.SGD if sparse else torch.optim.AdamW
    optimizer = attempt.wrap(kind(model.parameters(), 0.05), model)
    attempt.keep(model=model, optimizer=optimizer)
    attempt.start(optimizer)
    for batch in optimizer.batches(nets.tokens(), until=18):
        optimizer.zero_grad(set_to_none=False)  # writes to the gradients whose copies may be under way
        nets.loss_of(model, batch).backward()
        if clips:
            optimizer.clip_grad_norm_(0.1)
        attempt.tick()
        optimizer.step()
    optimizer.close()


@pytest.mark.parametrize("options", [{}, {"clips": True}, {"sparse": True}], ids=["plain", "clipped", "sparse"])
def test_log_waits_for_gradients_and_training_does_not(options: dict[str, bool], made: list[Late], tmp_path: Path) -> None:
    prove_exact(partial(training, **options), tmp_path / "run", [5, 9], handover="thread")
    (last,) = made[-1:]
    assert last.started > 0
    assert last.waited >= last.started  # each tensor of a record is waited for


def test_a_device_that_fails_suspends_logging_and_training_goes_on(
    made: list[Late], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = Late.copy, 0

    def failing(
        self: Late, device: torch.device, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], None]]:
        nonlocal calls
        calls += 1
        hosts, arrived = real(self, device, tensors)

        def lost() -> None:
            raise RuntimeError("the copy failed on the device")

        return hosts, lost if calls == 4 else arrived

    monkeypatch.setattr(Late, "copy", failing)
    prove_exact(training, tmp_path / "run", handover="thread")
    assert made
    assert [r.getMessage() for r in caplog.records if "the copy failed on the device" in r.getMessage()]


def test_what_is_near_or_sparse_is_brought_at_once() -> None:
    dense, sparse = torch.ones(3), torch.ones(3).to_sparse()
    first, second = Staging().bring([dense, sparse])
    assert isinstance(first, Array)
    assert not isinstance(first, Staged)
    assert first.data.ctypes.data == dense.data_ptr()
    assert not isinstance(second, Array)


def test_layouts_are_kept_without_a_look_at_what_has_not_come() -> None:
    late = Late()
    tensors = [
        torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.tensor(3 + 4j).conj(),
        torch.empty(0, 3),
    ]
    staged = late.bring(tensors)
    assert all(isinstance(array, Staged) and set(bytes(array.data)) <= set(FAR) for array in staged)
    thread = threading.Thread(target=lambda: [array.arrived() for array in staged if isinstance(array, Staged)],
                              name="tranlogs-writer")  # fmt: skip
    thread.start()
    thread.join()
    for tensor, array in zip(tensors, staged, strict=True):
        assert isinstance(array, Array)
        flat = torch.frombuffer(bytearray(array.data.tobytes()), dtype=tensor.dtype) if array.nbytes else torch.empty(0)
        back = flat.view(array.shape) if array.strides is None else flat.as_strided(array.shape, array.strides)
        assert torch.equal(back, tensor.resolve_conj())
