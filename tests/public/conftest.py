"""Scripts of users: everything is as TranLogs has it by default."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the newest unit again after a crash."""
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
