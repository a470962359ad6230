"""No test of shipping waits long before it tries again."""

from __future__ import annotations

import pytest

from tranlogs.shipping import archiver as archiver_module


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MIN", 0.01)
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MAX", 0.05)
