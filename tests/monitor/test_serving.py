"""`tranlogs monitor --http` as a process: what it says, what it imports, how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.monitor.asking import ask
from tests.monitor.test_watch import run
from tests.support.launcher import ROOT
from tests.support.toy import ToyTrainer
from tranlogs_monitor.dashboard.access.tokens import ENVIRONMENT_NAME

__all__ = ["run"]

LIBRARIES = ("jinja2", "prometheus_client", "starlette", "uvicorn")
CODE = """
import sys
{before}
from tranlogs.cli import app
try:
    app(["monitor", *sys.argv[1:]])
except SystemExit as end:
    print("exit", end.code)
print("imported", [name for name in {libraries} if sys.modules.get(name) is not None])
"""


@pytest.fixture(autouse=True)
def _children_are_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor"))))
    monkeypatch.delenv(ENVIRONMENT_NAME, raising=False)


def called(*arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    code = CODE.format(before=before, libraries=LIBRARIES)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=True
    )


@contextmanager
def serving(folder: Path, arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Run the monitor until SIGTERM; gives the address of the page, and a list that has all lines of its log at the end."""
    command = [sys.executable, "-m", "tranlogs", "monitor", str(folder), "--interval", "50ms", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        lines = [daemon.stderr.readline()]
        found = re.search(r"the page is at (http://\S+)", lines[0])
        assert found is not None, lines[0] + daemon.stderr.read()
        yield found[1], lines
        daemon.send_signal(signal.SIGTERM)
        lines += daemon.stderr.readlines()
        assert daemon.wait(30) == 0


def test_without_http_nothing_of_the_dashboard_is_imported(run: ToyTrainer) -> None:
    done = called(run.journal.paths.folder, "--once")
    assert done.stdout.splitlines()[-2:] == ["exit 0", "imported []"], done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_installed_is_told_with_the_extra_to_install(run: ToyTrainer, library: str) -> None:
    done = called(run.journal.paths.folder, "--http", ":0", before=f"sys.modules[{library!r}] = None")
    assert "exit 2" in done.stdout
    assert "pip install 'tranlogs[monitor]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_random_token_is_printed_once_and_opens_the_page(run: ToyTrainer) -> None:
    with serving(run.journal.paths.folder, ["--http", "0.0.0.0:0"]) as (url, lines):
        parts = urlsplit(url)
        assert parts.port is not None
        assert ask(parts.port, "/metrics").status == 401
        assert ask(parts.port, f"/metrics?{parts.query}").status == 200
    token = parts.query.removeprefix("token=")
    assert len(token) >= 32
    assert "".join(lines).count(token) == 1
    assert "uvicorn" not in "".join(lines).lower()


def test_a_token_of_a_file_is_required_and_not_printed(
    run: ToyTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv(ENVIRONMENT_NAME, "of-the-environment")
    with serving(run.journal.paths.folder, ["--http", "0.0.0.0:0", "--token-file", str(tmp_path / "token")]) as (url, lines):
        port = urlsplit(url).port
        assert port is not None
        assert ask(port, "/metrics", Authorization="Bearer of-the-environment").status == 401
        assert ask(port, "/metrics", Authorization="Bearer of-the-file").status == 200
    assert f"requires the token of --token-file {tmp_path}/token" in lines[0]
    assert "of-the-file" not in "".join(lines)


def test_no_auth_is_one_warning(run: ToyTrainer) -> None:
    with serving(run.journal.paths.folder, ["--http", "0.0.0.0:0", "--no-auth"]) as (url, lines):
        port = urlsplit(url).port
        assert port is not None
        assert ask(port, "/metrics").status == 200
    assert len([line for line in lines if " WARNING " in line]) == 1
    assert "--no-auth: everyone who reaches http://" in lines[1]


def test_an_address_that_cannot_be_had_ends_the_monitor(run: ToyTrainer) -> None:
    done = called(run.journal.paths.folder, "--http", "192.0.2.1:0")
    assert "exit 2" in done.stdout
    assert "--http 192.0.2.1:0: cannot listen on this address (Cannot assign requested address)" in " ".join(
        done.stderr.split()
    )
