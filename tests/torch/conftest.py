"""Tests for a GPU are collected where there is one; elsewhere it is said that they were not."""

from __future__ import annotations

import pytest
import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore:
        terminalreporter.write_line("tests/torch/test_cuda.py was not run: it needs a CUDA GPU")
