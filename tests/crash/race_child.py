"""Forks trainers that all open a run at the same moment: `python race_child.py RUN COUNT`. Each prints what it got."""

from __future__ import annotations

import os
import signal
import sys

from power_child import open_run

from tranlogs.base.errors import RunInUse


def race(run: str, go: int, tried: int, end: int) -> None:
    os.read(go, 1)
    try:
        trainer = open_run(run)
    except RunInUse as error:
        os.write(1, f"refused {error.pid}\n".encode())
        os.close(tried)
        return
    os.write(1, f"won {os.getpid()}\n".encode())
    os.close(tried)
    os.read(end, 1)  # until all have tried
    trainer.recover()
    trainer.train(trainer.journal.step + 20)
    os.kill(os.getpid(), signal.SIGKILL)


def main(run: str, count: str) -> None:
    (go, let_go), (tried, trying), (end, let_end) = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(int(count)):
        child = os.fork()
        if child == 0:
            os.close(let_go)
            os.close(let_end)
            race(run, go, trying, end)
            os._exit(0)
        children.append(child)
    os.close(trying)
    os.close(let_go)
    os.read(tried, 1)  # the last has tried
    os.close(let_end)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
