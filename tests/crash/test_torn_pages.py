"""A disk that loses or reorders what was written since its last flush, harsher than a power cut.

Each image of a run is made of the pages that a sync had covered and a random subset of those written later.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.crash.judging import judging
from tranlogs.catalog import CATALOG_NAME
from tranlogs.config import JournalConfig
from tranlogs.retention import EverySteps, KeepAll, KeepLatest
from tranlogs.testing.toy import ToyTrainer, open_toy
from tranlogs.wal import segment as segments
from tranlogs.wal.segment import Segment

pytestmark = pytest.mark.crash

SIZES = (7, 3000, 5000)  # those of power_child.py
CASES, ROUNDS = 8, int(os.environ.get("TRANLOGS_ROUNDS", 1))
SEED = int(os.environ["TRANLOGS_SEED"])
PAGE = 4096


class Disk:
    """Knows what of each segment file a sync has covered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.durable: dict[str, bytes] = {}
        self.recycled = 0
        self._lock = threading.Lock()
        sync, create, recycle = Segment.sync, segments.create, segments.recycle

        def synced(segment: Segment) -> None:
            content = segment.path.read_bytes()  # before: a sync covers at least what was there when it began
            sync(segment)
            self._note(segment, content)

        def created(*arguments: Any) -> Segment:
            made = create(*arguments)
            self._note(made, made.path.read_bytes())
            return made

        def reused(*arguments: Any) -> Segment | None:
            made = recycle(*arguments)
            if made is not None:
                self.recycled += 1
                self._note(made, made.path.read_bytes())
            return made

        monkeypatch.setattr(Segment, "sync", synced)
        monkeypatch.setattr(segments, "create", created)
        monkeypatch.setattr(segments, "recycle", reused)

    def _note(self, segment: Segment, content: bytes) -> None:
        with self._lock:
            self.durable[segment.path.name] = content

    def lose(self, trainer: ToyTrainer, image: Path, share: float, rnd: random.Random) -> int:
        """Make an image of the run as such a disk would leave it; returns the step that was synced."""
        synced, folder = trainer.journal.synced, trainer.journal.paths.folder
        (image / "rank0" / "log").mkdir(parents=True)
        with trainer.journal.catalog._lock:  # each of its transactions is synced; this one is the last
            with (image / "rank0" / CATALOG_NAME).open("wb") as file:
                trainer.journal.catalog._env.copyfd(file.fileno())
            ignored = shutil.ignore_patterns(".tmp-*")
            with contextlib.suppress(shutil.Error):  # a retired one is being deleted just now
                shutil.copytree(folder / "checkpoints", image / "rank0" / "checkpoints", ignore=ignored)
            for path in (folder / "log").glob("*.seg"):
                with self._lock:
                    before = self.durable.get(path.name)
                with contextlib.suppress(FileNotFoundError):  # a retired one is being recycled just now
                    if before is not None:
                        self._tear(before, path.read_bytes(), image / "rank0" / "log" / path.name, share, rnd)
        return synced

    @staticmethod
    def _tear(before: bytes, now: bytes, target: Path, share: float, rnd: random.Random) -> None:
        torn = bytearray(before)
        for at in range(0, len(now), PAGE):
            page = slice(at, at + PAGE)
            if before[page] != now[page] and rnd.random() < (max(share, 0.7) if at < 2 * PAGE else share):
                torn[page] = now[page]
        with target.open("wb") as file:
            for at in range(0, len(torn), 64 * PAGE):
                if torn.count(0, at, at + 64 * PAGE) < len(torn[at : at + 64 * PAGE]):  # the rest stays a hole
                    file.seek(at)
                    file.write(torn[at : at + 64 * PAGE])
            file.truncate(len(torn))


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS), ids=str)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("files", ["fresh", "recycled"])
def test_synced_steps_survive_torn_pages(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, share: float, seed: int
) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    rnd, disk, found = random.Random(seed), Disk(monkeypatch), []
    config = JournalConfig(durability="machine", segment_bytes=1 << 20)
    every, keep = (EverySteps(9), KeepLatest(1)) if files == "recycled" else (EverySteps(100), KeepAll())
    trainer = open_toy(memory_path / "run", sizes=SIZES, config=config, policy=every, retention=keep)
    trainer.recover()

    def roll(step: int) -> None:
        if step % 10 == 0:
            assert trainer.journal._wal is not None
            trainer.journal._wal.roll()

    with judging("writes since the last sync lost or reordered, page by page") as judge:
        for number in range(CASES):
            trainer.train(trainer.journal.step + rnd.randrange(1, 30), roll)
            image = memory_path / f"image{number}"
            least = disk.lose(trainer, image, share, rnd)
            found.append(judge(image, least))
            print(f"at step {trainer.journal.step}: {found[-1]}")
            shutil.rmtree(image)
    trainer.journal.close()
    assert not [verdict["failed"] for verdict in found if "failed" in verdict]
    assert (disk.recycled > 0) == (files == "recycled")
