"""A write-ahead log without a journal around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bare_log import BareLog


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareLog]:
    made = BareLog(tmp_path)
    yield made
    made.close()
