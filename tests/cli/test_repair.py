"""`tranlogs verify --repair`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tranlogs.journal.owner_lock import OwnerLock

from .conftest import STEPS, Cli


def test_a_sound_catalog_is_left_alone(cli: Cli, run: Path) -> None:
    before = (run / "rank0" / "catalog.lmdb").read_bytes()
    called = cli("verify", run, "--repair", "--json")
    assert (called.code, called.json["ranks"][0]["repaired"]) == (0, [])
    assert (run / "rank0" / "catalog.lmdb").read_bytes() == before


def test_a_damaged_catalog_is_rebuilt_and_kept(cli: Cli, run: Path) -> None:
    whole = cli("status", run, "--json").json["ranks"][0]
    path = run / "rank0" / "catalog.lmdb"
    path.write_bytes(b"nothing")
    assert cli("status", run).code == 1
    called = cli("verify", run, "--repair", "--json")
    assert called.code == 0
    (rank,) = called.json["ranks"]
    kept = [path.name for path in path.parent.glob("catalog.lmdb.broken-*")]
    assert any(kept[0] in line for line in rank["repaired"])
    again = cli("status", run, "--json")
    assert again.code == 0
    assert again.json["ranks"][0]["watermarks"]["committed"] == STEPS
    for key in ("recovery", "run_id", "framework", "timeline"):
        assert again.json["ranks"][0][key] == whole[key]


def test_a_missing_catalog_is_rebuilt(cli: Cli, run: Path) -> None:
    (run / "rank0" / "catalog.lmdb").unlink()
    assert cli("verify", run, "--repair").code == 0
    assert cli("status", run).code == 0


def test_a_checkpoint_that_somebody_deleted_leaves_the_catalog(cli: Cli, run: Path) -> None:
    checkpoint = max((run / "rank0" / "checkpoints").iterdir())
    shutil.rmtree(checkpoint)
    assert cli("verify", run).code == 1
    called = cli("verify", run, "--repair")
    assert (called.code, "rebuilt from" in called.out) == (0, True), called.out
    assert checkpoint.name not in cli("status", run).out


def test_the_store_is_named_for_a_repair_only(cli: Cli, run: Path, tmp_path: Path) -> None:
    called = cli("verify", run, "--store", tmp_path.as_uri())
    assert (called.code, "--store requires --repair" in called.err) == (2, True)


def test_a_run_in_use_is_refused(cli: Cli, run: Path) -> None:
    lock = OwnerLock(run / "rank0")
    try:
        called = cli("verify", run, "--repair")
    finally:
        lock.release()
    assert called.code == 2
    assert "writes this run" in called.err


def test_damaged_parts_are_replaced_by_the_copies_of_the_store(cli: Cli, run: Path, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    assert cli("push", run, store).code == 0
    segment = next(row for row in cli("status", run, "--json").json["ranks"][0]["segments"] if row["state"] == "sealed")
    path = run / "rank0" / "log" / segment["file"]
    with path.open("r+b") as file:
        file.truncate(segment["used_bytes"] // 2)
    checkpoint = max((run / "rank0" / "checkpoints").iterdir())
    (checkpoint / "meta.bin").unlink()
    assert cli("verify", run).code == 1
    called = cli("verify", run, "--repair", "--json")
    assert (called.code, called.json["problems"]) == (0, [])
    assert {line.partition(" ")[0] for line in called.json["ranks"][0]["repaired"]} == {path.name, checkpoint.name}
    assert cli("verify", run).code == 0


def test_what_no_copy_is_of_is_named(cli: Cli, run: Path) -> None:
    checkpoint = max((run / "rank0" / "checkpoints").iterdir())
    (checkpoint / "meta.bin").unlink()
    called = cli("verify", run, "--repair")
    assert called.code == 1
    assert checkpoint.name in called.out
