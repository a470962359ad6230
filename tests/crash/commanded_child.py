"""A trainer that does what it is told: `python commanded_child.py RUN DURABILITY`.

Commands come on stdin, and each has an answer:

* `train N`: train N more steps. The answer is the newest committed step, or "suspended".
* `copy PATH`: copy the run with shutil.copytree, within this process.
* `reopen`: open and close each file of the run.
* `closeall`: close all descriptors from 3 on, as a daemon does, and stop.
* `steal PATH`: close the descriptor of the journal's folder, and open another folder under its number.
* `closeowned`: close all descriptors from 3 on but the standard ones, and go on.
* `stopin N`: stop within the first of N more steps, and train them when the process goes on. The answer comes behind that.
* `fork`: fork a child that sleeps. The answer is its number.
* `exec`: start a program that sleeps. The answer is its number.
* `close`: close the journal.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
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
            os.kill(os.getpid(), signal.SIGSTOP)
        elif command == "steal":
            folder = trainer.journal._lock._folder_fd  # what a library that closes a number twice would hit
            os.close(folder)
            os.dup2(os.open(argument, os.O_RDONLY), folder)
        elif command == "closeowned":
            os.closerange(3, 256)
        elif command == "stopin":
            first = trainer.journal.step + 1
            trainer.train(first, lambda _: os.kill(os.getpid(), signal.SIGSTOP))
            trainer.train(first + int(argument) - 1)
            answer = "suspended" if trainer.journal.is_suspended else trainer.journal.committed
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
