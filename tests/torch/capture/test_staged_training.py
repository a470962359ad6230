"""Training whose gradients are staged on the twin of a GPU: it is recovered exactly, and goes on where staging fails."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch import nets
from tests.torch.capture.payloads import contents_of
from tests.torch.device.twin import Twin, devices
from tests.torch.lab import Attempt, prove_exact
from tranlogs.base.errors import LogUnavailable
from tranlogs.log.layout import Payload
from tranlogs_torch.capture.staging import Staging
from tranlogs_torch.capture.staging_plan import StagingLimits
from tranlogs_torch.loops import training_run


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


def training(
    attempt: Attempt, *, clips: bool = False, sparse: bool = False, clamps: bool = False, log: str = "gradients"
) -> None:
    nets.seed()
    model = nets.Mixed(sparse=sparse)
    optimizer = attempt.wrap((torch.optim.SGD if sparse else torch.optim.AdamW)(model.parameters(), 0.05), model, log=log)
    attempt.keep(model=model, optimizer=optimizer)
    attempt.start(optimizer)
    for batch in optimizer.batches(nets.tokens(), until=18):
        optimizer.zero_grad(set_to_none=False)  # writes to the gradients whose copies may be under way
        nets.loss_of(model, batch).backward()
        if clips:
            optimizer.clip_grad_norm_(0.1)
        attempt.tick()
        optimizer.step()
        if clamps:
            model.hidden.weight.data.clamp_(-0.1, 0.1)
    optimizer.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [{}, {"clips": True}, {"sparse": True}, {"clamps": True}, {"log": "weights"}],
    ids=["plain", "clipped", "sparse", "written between steps", "weights"],
)
def test_a_run_comes_back_exactly(options: dict[str, Any], twins: Twins, tmp_path: Path) -> None:
    prove_exact(partial(training, **options), tmp_path / "run", [5, 9], writer="thread")
    twin, staging = twins.made[-1]
    assert staging.statistics.payloads > 0
    assert max(twin.transfers) <= 512


def test_a_device_that_fails_suspends_logging_and_training_goes_on(
    twins: Twins, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    twins.fails_at = 4
    prove_exact(training, tmp_path / "run", writer="thread")
    assert [r.getMessage() for r in caplog.records if "the copy failed on the device" in r.getMessage()]


def test_no_space_in_the_ring_suspends_logging_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Payload] = []

    class Full(Staging):
        def __init__(self) -> None:
            super().__init__(devices(Twin()), StagingLimits(ring_bytes_min=64, ring_bytes_max=64, ring_seconds_max=0.0))

        def stage(self, *arguments: Any) -> Payload:
            kept.append(super().stage(*arguments))  # held, as by a writer that hangs
            return Payload.of(contents_of(Payload(*_parts(kept[-1]))))

    monkeypatch.setattr(training_run, "Staging", Full)
    prove_exact(training, tmp_path / "run", writer="thread")
    assert [r.getMessage() for r in caplog.records if "did not free" in r.getMessage()]


def _parts(payload: Payload) -> tuple[Any, ...]:
    """All but `release`."""
    return payload.layout, payload.buffers, payload.absent, payload.sparse, payload.wait
