"""The pictures of the dashboard in docs/: a toy run is trained, watched and photographed by a real Chromium.

    python experiments/dashboard_picture.py [--out docs]

Hours of training pass in a minute: the clocks of trainer and monitor are turned by hand.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from pathlib import Path

from PIL import Image
from support import Browser, FakeClock, ToyTrainer, chromium, open_toy

from tranlogs import EverySteps
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.cli.reading.find_journals import find_journals
from tranlogs.log import preallocator
from tranlogs.retention import KeepAll
from tranlogs.retention.prune import Budget
from tranlogs_monitor.dashboard.metrics import Metrics
from tranlogs_monitor.dashboard.pages.board import Board
from tranlogs_monitor.dashboard.pages.page import address_of_page
from tranlogs_monitor.dashboard.server import WebServer
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.watch import JournalWatch

SIZES = (7, 700, 5600)  # 50 KB of gradients a step
STEP_SECONDS, STEPS_A_LOOK = 4, 8
preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
SETTINGS = DaemonSettings(Budget(100 * MIB), interval_seconds=STEP_SECONDS * STEPS_A_LOOK)


def train_and_watch(run: Path, board: Board, *, looks: int) -> ToyTrainer:
    """Train for so many evaluations, the last of them now."""
    clock = FakeClock(time.time() - looks * SETTINGS.interval_seconds)
    config = JournalConfig(segment_bytes=MIB, durability="machine")
    trainer = open_toy(run, sizes=SIZES, config=config, policy=EverySteps(150), retention=KeepAll(), clock=clock)
    trainer.recover()
    (paths,) = find_journals(run)
    watch = JournalWatch(paths, SETTINGS, clock)
    for look in range(1, looks + 1):
        trainer.train(look * STEPS_A_LOOK, lambda step: clock.advance(STEP_SECONDS))
        trainer.journal.wait_checkpoint()
        trainer.journal.wait_synced()
        board.note(paths.folder, watch.evaluate())
    watch.close()
    return trainer


def look_once(run: Path, board: Board) -> None:
    """At a run whose trainer is gone."""
    (paths,) = find_journals(run)
    watch = JournalWatch(paths, SETTINGS, Clock())
    board.note(paths.folder, watch.evaluate())
    watch.close()


def main() -> None:
    """Train, watch, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs")
    out = parser.parse_args().out.resolve()
    program = chromium()
    if program is None:
        raise SystemExit("The pictures are taken by Chromium, which is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the journals have short names
        board = Board(SETTINGS)
        gpt = train_and_watch(Path("runs/gpt"), board, looks=223)
        train_and_watch(Path("runs/mnist"), board, looks=30).journal.close()
        look_once(Path("runs/mnist"), board)
        server = WebServer(("127.0.0.1", 0), Metrics(), board)
        with Browser(program) as browser:
            one = address_of_page("runs/gpt/rank0")
            pictures = (
                ("dashboard", one, 1000, False),
                ("dashboard-dark", one, 1000, True),
                ("dashboard-phone", one, 380, True),
                ("dashboard-all", "/", 760, False),
            )
            for name, path, width, is_dark in pictures:
                browser.look(width=width, height=300, is_dark=is_dark)
                browser.open(f"http://127.0.0.1:{server.port}{path}")
                with Image.open(io.BytesIO(browser.picture())) as picture:
                    picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                        out / f"{name}.png", optimize=True
                    )
        server.close()
        gpt.journal.close()
    print(f"{out}/dashboard*.png")


if __name__ == "__main__":
    main()
