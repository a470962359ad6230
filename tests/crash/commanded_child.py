"""A trainer that does what it is told: `python commanded_child.py RUN DURABILITY`, with commands on stdin, an answer to each.

train N      trains N more steps; the answer is the newest committed step, or "suspended"
copy PATH    copies the run with shutil.copytree, within this process
reopen       opens and closes each file of the run
closeall     closes all descriptors from 3 on, as a daemon does
fork         forks a child that sleeps; the answer is its number
exec         starts a program that sleeps; the answer is its number
close        closes the journal
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from power_child import SIZES

from tests.support.toy import open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import RunInUse
from tranlogs.retention import EverySteps, KeepLatest


def main(run: str, durability: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    config = JournalConfig(durability=durability, segment_bytes=1 << 20)  # type: ignore[arg-type]
    try:
        trainer = open_toy(run, sizes=SIZES, config=config, policy=EverySteps(50), retention=KeepLatest(3))
    except RunInUse as error:
        print("refused", error, flush=True)
        return
    print("recovered", trainer.recover().step, flush=True)
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        answer: object = "done"
        if command == "train":
            trainer.train(trainer.journal.step + int(argument), lambda _: time.sleep(0.002))
            answer = "suspended" if trainer.journal.is_suspended else trainer.journal.committed
        elif command == "copy":
            shutil.copytree(run, argument)
        elif command == "reopen":
            for path in sorted(Path(run).rglob("*")):
                if path.is_file():
                    path.open("rb").close()
        elif command == "closeall":
            os.closerange(3, 256)
        elif command == "fork":
            answer = os.fork()
            if answer == 0:
                time.sleep(600)
        elif command == "exec":
            answer = subprocess.Popen(["sleep", "600"], close_fds=False).pid
        elif command == "close":
            trainer.journal.close()
        print(answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
