"""Test support that experiments use: the toy trainer, the fake clock and the browser of tests/support."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script that runs alone has only its own folder there

from tests.support.browser import Browser, chromium
from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy

__all__ = ["Browser", "FakeClock", "ToyTrainer", "chromium", "open_toy"]
