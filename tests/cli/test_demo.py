"""The thin command; the demo itself is tested where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli


class Entry:
    """An entry point that gives a demo."""

    def __init__(self, demo: Any) -> None:
        self.demo = demo

    def load(self) -> Any:
        return self.demo


def test_demo_passes_its_options_and_its_exit_code(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_demo(folder: Path, *, quick: bool, seed: int | None, as_json: bool) -> int:
        calls.append((folder, quick, seed, as_json))
        return 1

    asked = []
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **which: asked.append(which) or [Entry(run_demo)])
    assert cli("demo").code == 1
    assert cli("demo", "--quick", "--seed", 7, "--folder", tmp_path, "--json").code == 1
    assert calls == [(Path("demo-run"), False, None, False), (tmp_path, True, 7, True)]
    assert asked == [{"group": "tranlogs.demos", "name": "torch"}] * 2


def test_the_entry_point_takes_these_arguments() -> None:
    import inspect
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="tranlogs.demos", name="torch")
    assert list(inspect.signature(entry.load()).parameters) == ["folder", "quick", "seed", "as_json"]


def test_a_demo_without_its_framework_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: [])
    called = cli("demo")
    assert called.code == 2
    assert "pip install 'tranlogs[torch]'" in called.err
