"""torchft at its own job: two replicas train together, one dies and is healed from the other; then both die.

    python experiments/torchft_heal.py [--quick] [--out FILE]

Each replica is a process with the network of experiments/peers.py and batches that its number and the step decide; gradients
are averaged over Gloo. Optimizer and schedule go with the weights when a replica is healed, as in torchft's own example.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Circumstances, command_line, write_results

_SECONDS_MAX = 240
_TIMEOUT_SECONDS = 30  # of a collective in which a replica is missing


def replica(number: int, after: int, width: int, folder: Path, crash: int | None) -> None:
    """One of them, until the file `end` says so; a line for each step that was committed."""
    from datetime import timedelta

    import torch
    import xxhash
    from peer.job import Job, digits
    from torch import distributed as dist
    from torchft import Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    begun = time.time()
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    job = Job(width)

    def state() -> dict[str, Any]:
        return {"model": job.model.state_dict(), "optimizer": job.inner.state_dict(), "scheduler": job.scheduler.state_dict()}

    def load(found: dict[str, Any]) -> None:
        job.model.load_state_dict(found["model"])
        job.inner.load_state_dict(found["optimizer"])
        job.scheduler.load_state_dict(found["scheduler"])

    timeout = timedelta(seconds=_TIMEOUT_SECONDS)
    group = ProcessGroupGloo(timeout=timeout)
    manager = Manager(
        pg=group,
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"replica{number}",
        hostname="localhost",
        use_async_quorum=False,
    )
    optimizer = Optimizer(manager, job.inner)
    data, end = digits(), folder / "end"
    is_second_life = (folder / f"{number}.jsonl").exists()
    _meet(folder, number)
    while not end.exists() or manager.current_step() < int(end.read_text()):
        optimizer.zero_grad()  # asks who is there; one that has just come is healed here
        step = manager.current_step()
        if step == crash:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(10 * step + number)
        chosen = torch.randint(0, len(data), (64,))
        job.backward(data.tensors[0][chosen], data.tensors[1][chosen])
        for work in [
            manager.allreduce(p.grad) for p in job.model.parameters()
        ]:  # its DDP stops at a torn collective on this torch
            work.wait()
        optimizer.step()
        if manager.current_step() > step:
            job.scheduler.step()
            if is_second_life and not end.exists() and manager.num_participants() == 2:
                publish(end, str(step + 1 + after))
            _tell(folder, number, {"step": step + 1, "at": time.time(), "begun": begun, "with": manager.num_participants()})
    weights = xxhash.xxh3_64()
    for parameter in job.model.parameters():  # batch statistics are each replica's own
        weights.update(parameter.detach().numpy().tobytes())
    _tell(folder, number, {"digest": weights.hexdigest()})
    os._exit(0)  # its server threads would go on


def _tell(folder: Path, number: int, what: dict[str, Any]) -> None:
    with open(folder / f"{number}.jsonl", "a") as file:
        file.write(json.dumps(what) + "\n")


def _meet(folder: Path, number: int) -> None:
    """Wait until both are there: one that is early would train alone."""
    (folder / f"here-{number}").touch()
    while not (folder / f"here-{1 - number}").exists():
        time.sleep(0.01)


def publish(path: Path, text: str) -> None:
    """A file that is there whole or not at all; both replicas may write it."""
    temporary = path.with_suffix(f".tmp{os.getpid()}")
    temporary.write_text(text)
    temporary.rename(path)


# The experiment.


class Pair:
    """Both replicas, in a folder of their own, with a lighthouse."""

    def __init__(self, folder: Path, after: int, width: int) -> None:
        folder.mkdir()
        self._folder, self._after, self._width = folder, after, width
        code = (
            "from torchft.coordination import LighthouseServer as Server; import time\n"
            "server = Server(bind='[::]:0', min_replicas=1, join_timeout_ms=3000)\n"
            "print(server.address(), flush=True); time.sleep(1e6)"
        )
        self._lighthouse = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True)
        assert self._lighthouse.stdout is not None
        self._address = self._lighthouse.stdout.readline().strip()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._lighthouse.kill()
        self._lighthouse.communicate()

    def start(self, number: int, crash: int | None = None) -> subprocess.Popen[bytes]:
        """A replica."""
        command = [
            sys.executable,
            "-W",
            "ignore",
            __file__,
            "--replica",
            str(number),
            str(self._after),
            str(self._width),
            str(self._folder),
            *([] if crash is None else [str(crash)]),
        ]
        environment = {**os.environ, "TORCHFT_LIGHTHOUSE": self._address, "OMP_NUM_THREADS": "1"}
        with open(self._folder / f"{number}.said", "a") as said:
            return subprocess.Popen(command, env=environment, stdout=said, stderr=said)

    def told(self, number: int) -> list[dict[str, Any]]:
        """Lines of a replica."""
        return [json.loads(line) for line in (self._folder / f"{number}.jsonl").read_text().splitlines()]


def run(folder: Path, after: int, width: int, crashes: dict[int, int]) -> dict[str, Any]:
    """Both replicas; those that die by the plan are started again when all of these are dead."""
    with Pair(folder, after, width) as pair:
        if not crashes:
            publish(folder / "end", str(after))
        running = {number: pair.start(number, crashes.get(number)) for number in (0, 1)}
        for number in crashes:
            if running[number].wait(_SECONDS_MAX) != -signal.SIGKILL:
                raise SystemExit((folder / f"{number}.said").read_text()[-3000:])
        running |= {number: pair.start(number) for number in crashes}
        for number, process in running.items():
            try:
                if process.wait(_SECONDS_MAX):
                    raise SystemExit((folder / f"{number}.said").read_text()[-3000:])
            finally:
                process.kill()
        return {"told": [pair.told(number) for number in (0, 1)]}


def _row(what: str, found: dict[str, Any], crashes: dict[int, int]) -> dict[str, Any]:
    survivor, other = found["told"]
    steps = [line for line in survivor if "step" in line]
    slowest = max(b["at"] - a["at"] for a, b in pairwise(steps) if b["step"] == a["step"] + 1)
    again = [line for line in other if "step" in line]
    lives = [line["begun"] for line in again]
    healed = next((line for line in again if line["begun"] != lives[0]), None)
    lost = max(crash - _resumed(found["told"][number]) for number, crash in crashes.items()) if crashes else 0
    digests = [told[-1]["digest"] for told in found["told"]]
    seconds = "" if healed is None else round(healed["at"] - healed["begun"], 2)
    return {
        "what": what,
        "lost": max(0, lost),
        "equal": digests[0] == digests[1],
        "slowest": round(slowest, 2),
        "healed": seconds,
    }


def _resumed(told: list[dict[str, Any]]) -> int:
    """Steps that were there when the second life made its first."""
    lines = [line for line in told if "step" in line]
    return int(next(line["step"] for line in lines if line["begun"] != lines[0]["begun"])) - 1


def measure(*, quick: bool) -> dict[str, Any]:
    """Uninterrupted; one dies; both die."""
    after, crash, width = (10, 4, 64) if quick else (50, 40, 1400)
    plans: dict[str, dict[int, int]] = {"nothing": {}, "one replica": {1: crash}, "both": {0: crash, 1: crash}}
    with tempfile.TemporaryDirectory() as folder:
        found = {what: run(Path(folder) / what.replace(" ", "-"), after, width, crashes) for what, crashes in plans.items()}
    rows = [_row(what, one, plans[what]) for what, one in found.items()]
    for row in rows:
        print(f"  {row}", flush=True)
    return {"version": metadata.version("torchft"), "after": after, "crash": crash, "rows": rows}


def main() -> None:
    parser = command_line(__doc__, "few steps: checks the script, not the claim", out="torchft")
    parser.add_argument("--replica", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.replica:
        number, after, width, folder, *crash = arguments.replica
        replica(int(number), int(after), int(width), Path(folder), int(crash[0]) if crash else None)
    begun = Circumstances()
    write_results(arguments.out, measure(quick=arguments.quick), begun)


if __name__ == "__main__":
    main()
