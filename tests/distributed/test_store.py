"""A store beside a group of processes: what a lost disk had is brought from it, for whoever goes on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.distributed.child import DIES, STEPS
from tests.distributed.conftest import Launcher
from tests.distributed.test_world import landed, seen
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.journal_facts import read_facts

pytestmark = pytest.mark.crash


def test_a_lost_disk_comes_back_from_the_store(launcher: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "run"
    Path(f"{run}.store").mkdir()
    arguments = ["resized store", str(run), str(launcher.folder / "out"), json.dumps([[2, 12, 0, "disk"]])]
    assert launcher.ask({"world": 3, "restarts": 0, "arguments": arguments})
    assert DIES in launcher.said(), launcher.said()[-3000:]
    launcher.run(3, "resized store", run)
    told = launcher.told()
    assert "rank2: fetched from" in launcher.said()
    assert told[0]["step"] >= 11  # the newest checkpoint is that of step 7
    assert told[0]["exact"] is True
    steps = seen(run, 3)
    assert landed(run, 3) == [[told[0]["step"], steps[told[0]["step"]][0][2]]] * 3
    newest = max(steps)
    shutil.rmtree(run)  # and another machine goes on
    launcher.run(2, "resized store", run)
    assert [path.name for path in sorted(run.iterdir())] == ["rank0", "rank1", "rank2"]
    assert landed(run, 2) == [[newest, steps[newest][0][2]]] * 2


def damage_last_share(journal: Path) -> None:
    """Flip a bit in what a rank has of the last step."""
    for segment in read_facts(journal).segments:
        with SegmentReader(segment.path) as reader:
            entries = list(reader.entries(list(segment.locations)))
        for entry in entries:
            if entry.kind.is_step and entry.step == STEPS:
                with segment.path.open("r+b") as file:
                    file.seek(entry.location.payload_offset)
                    byte = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("kind", ["plain", "far"])  # far: the others have copies of what is damaged
def test_what_is_damaged_in_a_journal_comes_from_the_store(
    copied: Path, launcher: Launcher, cli: Cli, tmp_path: Path, kind: str
) -> None:
    right = launcher.reference(3, "plain")
    assert cli("push", copied, (tmp_path / "store").as_uri()).code == 0
    damage_last_share(copied / "rank1")
    (copied / "rank2/checkpoints" / max(os.listdir(copied / "rank2/checkpoints")) / "meta.bin").unlink()
    for path in (copied / "rank0/log").glob("*.seg"):
        path.unlink()
    outcome = launcher.run(3, kind, copied)
    [told] = launcher.told()
    assert (told["step"], told["exact"]) == (STEPS, True)
    assert sum("replaced by the copy in" in note for note in told["notes"]) >= 3
    assert outcome == right
