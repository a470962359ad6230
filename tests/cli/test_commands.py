"""What each command says, as text and as JSON, and its exit code, in one table; and that nothing gives a traceback."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tranlogs
from tests.format.test_other_versions import ADVICE, ARCHIVE, WHAT, content
from tests.support import disks
from tranlogs.base.errors import NotARun, UsageError
from tranlogs.catalog import Catalog, Incident
from tranlogs.cli import main
from tranlogs.cli.app import SUBCOMMANDS, load_subcommand
from tranlogs.journal.owner_lock import OwnerLock

from .conftest import STEPS, Cli, flip, segment_files, train

COMMANDS = ("demo", "status", "log", "verify", "replay", "rehearse", "advise", "monitor", "push", "pull")


# The table.


def nothing(run: Path) -> None:
    """Leave the run as it is."""


def suspended(run: Path) -> None:
    _put(run, "incident/000001", Incident(1, "No space left on device", 7, time.time()))


def once_suspended(run: Path) -> None:
    _put(run, "incident/000001", Incident(1, "No space left on device", 3, time.time(), 4, time.time()))


def of_a_newer_version(run: Path) -> None:
    catalog = Catalog.open(run / "rank0")
    about = catalog.run()
    catalog.close()
    assert about is not None
    _put(run, "run", replace(about, format=99))


def unmeasured(run: Path) -> None:
    catalog = Catalog.open(run / "rank0", writable=True)
    with catalog.transaction() as tables:
        tables.delete("measured")
    catalog.close()


def _put(run: Path, key: str, row: Any) -> None:
    catalog = Catalog.open(run / "rank0", writable=True)
    with catalog.transaction() as tables:
        tables.put(key, row)
    catalog.close()


def of_two_ranks(run: Path) -> None:
    shutil.copytree(run / "rank0", run / "rank1")


def beside_a_file(run: Path) -> None:
    (run.parent / "out").write_text("mine")


CASES: list[tuple[Callable[[Path], None], str, int, list[str]]] = [
    (
        nothing,
        "status RUN",
        0,
        [
            f"step {STEPS}: survives the process",
            f"goes back to step {STEPS}: checkpoint 8 and 1 step of log",
            "nobody (finished: process",
            # durability="process": the checkpoint of step 8 is on disk, and both lines say so.
            "synced step 8, by its checkpoint: survives power loss (log: step 0)",
            "process dies loses no finished step",
            "power fails loses 1 step: the checkpoint of step 8 is left",
            "site is gone loses everything: there is no store",
        ],
    ),
    (suspended, "status RUN", 1, ["logging is suspended since step 7: No space left on device"]),
    (once_suspended, "status RUN", 0, ["No space left on device"]),
    (nothing, "status FOLDER", 0, ["run", "closed"]),
    (of_a_newer_version, "status FOLDER", 1, ["unreadable", "version 99"]),
    (
        nothing,
        "advise RUN",
        0,
        [
            "recorded what gradients cost is being measured",  # it was closed amid its first trial
            "failures 0 interruptions in",
            'best not known; log="auto", checkpoint_every="auto" measures what it depends on',
            "log they writes 600 TB after waste at waste at waste at waste at",
            "log checkpoints one in costs cost a day last a crash 1 h 6 h 1 day 1 week",
            "gradients now",
            "inputs auto",
            "gradients 10min 10.0 min - ",
            'not measured: what gradients cost in a step (log="auto" tries it)',
            "not measured: weights, since none were logged",
        ],
    ),
    (unmeasured, "advise RUN", 2, ["RUN: nothing is measured yet"]),
    (nothing, "advise FOLDER", 2, ["no run"]),
    (nothing, "log RUN", 0, ["loss=", "gradients", "image"]),
    (nothing, "log RUN --step 2", 0, ["grad/0.weight", "8x4", "hyper-parameters in force", "betas", "fingerprint", "loss="]),
    *((nothing, f"log RUN --step {step}", 2, [f"the log holds steps 1 to {STEPS}"]) for step in (0, STEPS + 1)),
    (nothing, "log alluxio://host/runs/gpt", 2, ["`tranlogs status URL` lists its runs"]),
    (nothing, "verify RUN", 0, ["result intact"]),
    (nothing, "verify RUN --replay", 0, ["9 steps from checkpoint 0 in"]),
    (nothing, "verify RUN --store file:///tmp", 2, ["--store requires --repair"]),
    (
        nothing,
        "replay RUN --out FOLDER/state.safetensors",
        0,
        [
            f"step {STEPS} (batch {STEPS}, epoch 1, timeline 1)",
            "all redone steps equal the run's",
            "tracked objects (scheduler) are left out",
        ],
    ),
    (nothing, f"replay RUN --step {STEPS + 5} --out FOLDER/x.pt", 1, ["is not covered", f"the nearest is {STEPS}"]),
    (beside_a_file, "replay RUN --format pt --out FOLDER/out", 2, ["FOLDER/out exists already", "--force"]),
    (nothing, "replay RUN --out FOLDER/state.weights.h5", 2, ["FOLDER/state.weights.h5: ", "this is a run of PyTorch"]),
    (nothing, "replay RUN --format onnx --out FOLDER/out", 2, ["can be written as dcp, pt, safetensors"]),
    (of_two_ranks, "replay RUN --out FOLDER/state.pt", 2, ["RUN/rank1"]),
    (of_two_ranks, "replay RUN/rank1 --out FOLDER/state.pt", 0, [f"step {STEPS}"]),
    *(
        (nothing, f"monitor RUN {options}", 2, [said])
        for options, said in (
            ("--once --budget much", "--budget 'much': give a size like \"512MiB\""),
            ("--interval soon", "--interval 'soon': give a time"),
            ("--once --budget 1MiB --set high=0.5 --set low=0.8", "0 < low <= high <= 1"),
            ("--once --set alpha_newer=7", "alpha newer must be a number from 0 to 1, got 7.0"),
            ("--once --set max_checkpoints=0", "checkpoints_max must be at least 1, got 0"),
            ("--once --set max_age", "--set max_age: expected NAME=VALUE with one of the names high, low, max_age,"),
            ("--once --set max_age=1d --set max_age=2d", "--set max_age is given twice"),
            ("--once --store FOLDER/s", "to ship a run once"),
            ("--store FOLDER/s --set uploads=0", "--set uploads must be at least 1, got 0"),
            ("--store FOLDER/s --set take_over=yes", "--set take_over 'yes': give true or false"),
            # An option without effect is an error.
            ("--once --dry-run", "--once has no effect with --dry-run"),
            ("--dry-run --store FOLDER/s", "--dry-run does not ship"),
            ("--once --set wait=true", "--set wait has no effect with --once"),
            ("--dry-run --set until_closed=true", "--set until_closed has no effect with --once or --dry-run"),
        )
    ),
    (nothing, "push RUN nothing://there", 2, ["store nothing://there: Protocol not known"]),
    (nothing, "push RUN file://host/path", 2, ["the address of a folder has no host"]),
    (nothing, "push RUN /proc/tranlogs/store --patience 300ms", 1, ["/proc/tranlogs"]),
    (nothing, "pull FOLDER/none FOLDER/b", 2, ["the store holds no run at this address"]),
    *(
        (nothing, f"{name} {url}", 2, [url.partition("?")[0]])
        for name in ("verify", "status")
        for url in ("alluxio://", "file://host/path", "alluxio://host?nothing=1")
    ),
]


@pytest.mark.parametrize(("make", "line", "code", "said"), CASES, ids=[f"{make.__name__}: {line}" for make, line, *_ in CASES])
def test_what_a_command_says(
    cli: Cli, run: Path, tmp_path: Path, make: Callable[[Path], None], line: str, code: int, said: list[str]
) -> None:
    make(run)
    other = tmp_path if code == 2 else shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-json"))
    for folder, is_json in ((tmp_path, False), (other, "--watch" not in line)):
        words = [word.replace("RUN", str(folder / "run")).replace("FOLDER", str(folder)) for word in line.split()]
        called = cli(*words, *(["--json"] if is_json else []))
        assert called.code == code, called.out + called.err
        if code == 2:
            assert called.err.startswith("tranlogs: ")
            assert is_json or (called.out, called.err.count("\n")) == ("", 1)
        if is_json:
            assert isinstance(called.json, dict)
            assert ("error" in called.json) == (called.code == 2) or code == 1
        else:
            found = " ".join((called.out + called.err).split())
            for each in said:
                assert each.replace("RUN", str(folder / "run")).replace("FOLDER", str(folder)) in found
    assert not (tmp_path / "out").exists() or (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("status", "required: RUN|FOLDER|URL; see `tranlogs status --help`"),
        ("nothing", "no command 'nothing'; see `tranlogs --help`"),
        ("replay run", "required: --out"),
        ("log run --step x", "invalid int value: 'x'"),
        ("log run --step -1", "--step/-s: must be at least 0, got -1"),
        ("push run file:///tmp --uploads", "expected one argument"),
        ("rehearse", "required: -- COMMAND"),
        ("--nothing", "unrecognized arguments: --nothing"),
    ],
)
def test_wrong_usage_is_said_in_one_line_and_exits_with_2(cli: Cli, line: str, said: str) -> None:
    called = cli(*line.split())
    assert (called.code, called.out, called.err.count("\n"), said in called.err) == (2, "", 1, True), called.err
    assert called.err.startswith("tranlogs: ")


def test_options_stand_before_and_after_arguments(cli: Cli, run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    for line in (f"--once --json {run} {other}", f"{run} --json {other} --once", f"--once --json -- {run} {other}"):
        assert len(cli("monitor", *line.split()).json["journals"]) == 2
    assert cli("log", "-n2", "--json", run).json == cli("log", run, "--json", "--limit=2").json


# Whatever lies at RUN.

READING = ("status", "advise", "log", "log --step 5", "verify", "verify --replay", "replay --out OUT")
EVERY = (*READING, "verify --repair")


def called_with(cli: Cli, line: str, run: Path, *more: str) -> tuple[int, str, str]:
    words = [str(run.parent / "state.pt") if word == "OUT" else word for word in line.split()]
    called = cli(*words, run, *more)
    assert "unexpected error" not in called.err
    if "--json" in more:
        assert isinstance(called.json, dict)
    return called.code, called.out, called.err


def missing(run: Path) -> None:
    assert not run.exists()


def empty(run: Path) -> None:
    run.mkdir()


def foreign(run: Path) -> None:
    (run / "log").mkdir(parents=True)
    (run / "model.pt").write_bytes(b"no run")
    (run / "rank0").mkdir()


def a_file(run: Path) -> None:
    run.write_text("no folder")


@pytest.mark.parametrize("make", [missing, empty, foreign, a_file])
def test_what_is_no_run_is_refused_in_one_line(cli: Cli, tmp_path: Path, make: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    make(run)
    before = sorted(tmp_path.rglob("*"))
    for line in EVERY:
        code, out, err = called_with(cli, line, run)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"tranlogs: {run}: ")
        code, out, _ = called_with(cli, line, run, "--json")
        assert (code, '"NotARun"' in out) == (2, True)
    assert cli("monitor", run, "--once").code == 2
    assert sorted(tmp_path.rglob("*")) == before


def newest_checkpoint(run: Path) -> Path:
    return max((run / "rank0/checkpoints").iterdir())


def garble(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "catalog cut": lambda run: os.truncate(run / "rank0/catalog.lmdb", 3 * 4096),  # of what it uses
    "catalog deleted": lambda run: (run / "rank0/catalog.lmdb").unlink(),
    "segment garbled": lambda run: garble(segment_files(run)[0]),
    "manifest": lambda run: flip(newest_checkpoint(run) / "manifest.json", 200),
    "checkpoint deleted": lambda run: shutil.rmtree(newest_checkpoint(run)),
    "log deleted": lambda run: shutil.rmtree(run / "rank0/log"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_with_its_file_and_gives_no_traceback(cli: Cli, run: Path, damage: str) -> None:
    DAMAGES[damage](run)
    for line in ("status", "verify"):
        code, out, _ = called_with(cli, line, run, "--json")
        assert code == 1
        assert str(run / "rank0") in out
    for line in EVERY:
        code, out, err = called_with(cli, line, run)
        assert code in (0, 1, 2)
        assert out or err


def test_errors_are_one_line_and_debug_shows_where(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([KeyError("a bug"), PermissionError(13, "Permission denied", "/some/file")])

    def fail(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr("tranlogs.cli.commands.status.survey", fail)
    called = cli("status", run)
    assert called.code == 1
    assert called.err == "tranlogs: unexpected error (KeyError: 'a bug'); run `tranlogs --debug ...` to see where\n"
    called = cli("status", run, "--json")
    assert (called.code, called.err) == (1, "tranlogs: /some/file: Permission denied\n")
    assert called.json == {"error": {"kind": "PermissionError", "message": "/some/file: Permission denied"}}
    monkeypatch.undo()
    with pytest.raises(NotARun):
        main(["--debug", "status", str(run / "none")])


def test_a_run_of_an_older_format_is_named_and_left_alone(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    before = content(tmp_path / "run")
    for line in ("status", "log", "verify", "replay --out OUT"):
        code, out, err = called_with(cli, line, tmp_path / "run")
        said = " ".join((out + err).split())
        assert (code, WHAT in said, ADVICE in said) == (1, True, True), said
    assert content(tmp_path / "run") == before


@pytest.fixture
def frozen(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """The run, on a disk that was mounted anew without the right to write."""
    with disks.memory_disk(tmp_path / "disk") as disk:
        shutil.copytree(trained, disk / "run")
        disks.make_read_only(disk)
        yield disk / "run"


@pytest.mark.disks
def test_a_run_on_a_read_only_disk_is_read_by_every_command_and_not_written(cli: Cli, frozen: Path, tmp_path: Path) -> None:
    assert cli("status", frozen, "--json").json["ranks"][0]["watermarks"]["committed"] == STEPS
    for line in ("log", "log --step 5", "verify", "verify --replay"):
        assert called_with(cli, line, frozen)[0] == 0
    replayed = cli("replay", frozen, "--step", 6, "--out", tmp_path / "state.pt", "--json")
    assert (replayed.code, replayed.json["step"], replayed.json["exact"]) == (0, 6, True)
    with pytest.raises(UsageError, match=r"cannot be opened for writing: .*Read-only file system"):
        train(frozen, STEPS + 1)
    for line in ("verify --repair", "monitor --once"):
        code, out, err = called_with(cli, line, frozen)
        assert (code in (1, 2), "Read-only file system" in out + err) == (True, True)
        assert "no run is there" not in out + err


def test_reading_changes_nothing_and_a_run_in_use_is_not_repaired(cli: Cli, run: Path) -> None:
    files = {path for path in run.rglob("*") if path.is_file() and not path.name.endswith("-lock")}
    before = {path: path.read_bytes() for path in files}
    lock = OwnerLock(run / "rank0")
    for line in READING:
        assert called_with(cli, line, run)[0] == 0
    code, _, err = called_with(cli, "verify --repair", run)
    assert (code, "writes this run" in err) == (2, True)
    lock.release()
    after = {path for path in run.rglob("*") if path.is_file() and not path.name.endswith("-lock")}
    assert {path.name for path in after ^ files} <= {"owner.json", "owner.lock"}
    assert {path: path.read_bytes() for path in files if "owner" not in path.name} == {
        path: data for path, data in before.items() if "owner" not in path.name
    }


# Help, and what is imported.


def test_help_names_every_command_its_json_and_the_exit_codes(cli: Cli) -> None:
    called = cli("--help")
    assert (called.code, tuple(SUBCOMMANDS)) == (0, COMMANDS)
    assert "Exit codes: 0 fine, 1 the run has a problem" in called.out
    assert "..." not in called.out.removeprefix("usage: tranlogs [OPTIONS] COMMAND [ARGS]...")
    for name in COMMANDS:
        assert f"\n  {name} " in called.out
        shown = cli(name, "--help")
        assert (shown.code, "--json" in shown.out) == (0, True)
        assert (load_subcommand(name).__doc__ or "").splitlines()[0] == SUBCOMMANDS[name]
    assert cli("--version").out == f"tranlogs {tranlogs.__version__}\n"


FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
CLIENTS = ("alluxio", "fsspec", "requests", "jinja2", "prometheus_client", "starlette", "uvicorn")
SLOW = ("numpy", "secrets", "hmac", "_hashlib", "socket", "asyncio", "tranlogs.stores.local")
HEAVY = (*FRAMEWORKS, *CLIENTS, "numpy", "lmdb", "rich", "xxhash")
IMPORTS = """
import json, os, sys
for line, slow in json.loads(sys.argv[1]):
    if os.fork() == 0:
        from tranlogs.cli import main
        try:
            main(line.split())
        except SystemExit:
            pass
        print("imported by", line, [name for name in slow if name in sys.modules], flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_command_imports_only_what_it_needs(run: Path) -> None:
    no_store = (*FRAMEWORKS, *CLIENTS, "tranlogs.shipping")
    cases = [
        ("--help", HEAVY),
        ("status no/such/run", no_store),
        (f"status {run}", (*no_store, *SLOW)),
        (f"log {run} --step 1", (*no_store, *SLOW)),
        (f"monitor {run} --once", (*FRAMEWORKS, *CLIENTS)),
    ]
    command = [sys.executable, "-c", IMPORTS, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [line for line in done.stdout.splitlines() if line.startswith("imported by")]
    assert imported == [f"imported by {line} []" for line, _ in cases], done.stderr


def test_a_reader_that_goes_away_is_no_error(trained: Path) -> None:
    command = f"{sys.executable} -m tranlogs log {trained} --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_demo_passes_its_options_and_its_exit_code(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo itself is tested where it lies."""
    (entry,) = entry_points(group="tranlogs.demos", name="torch")
    assert list(inspect.signature(entry.load()).parameters) == ["folder", "quick", "seed", "as_json"]
    calls = list[object]()
    made = SimpleNamespace(load=lambda: lambda folder, **options: calls.append((folder, *options.values())) or 1)
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: [made])
    assert cli("demo", "--quick", "--seed", 7, "--folder", tmp_path, "--json").code == 1
    assert calls == [(tmp_path, True, 7, True)]
