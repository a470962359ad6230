"""A run of sharded processes (FSDP2) dies, and goes on with another number of them: TranLogs, DCP, one file by rank 0.

    python experiments/other_world_size.py [--quick] [--out FILE]

W processes train over Gloo; as a step begins, the last one dies by SIGKILL and takes the others down. Then W' processes begin
with the same script. What it has then, weights and optimizer, is gathered whole and compared bit for bit
with what the uninterrupted run of W had at that step. DCP and torch.save save every few steps, as torch's own
documentation of `torch.distributed.checkpoint.state_dict` says.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from harness import command_line, measured_folder, take
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tranlogs_torch import LoggedOptimizer

EVERY, CRASH, AFTER = 4, 14, 2  # steps between saves, done when a process dies, trained after that
CHANGES, CHANGES_QUICK = ((2, 3), (3, 2), (2, 1), (1, 2)), ((2, 3),)
WIDTH, WIDTH_QUICK = 600, 50
_SECONDS_MAX = 120
_FORK = multiprocessing.get_context("fork")


class Sharded:
    """A network whose layers are sharded over all processes, and its optimizer."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)))
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._width = width

    def step(self, optimizer: Any, number: int) -> None:
        """Train the batch of a step and rank."""
        chance = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        self.model(torch.randn(8, self._width, generator=chance)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def whole(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both state dicts, gathered on rank 0. All must call it."""
        return get_state_dict(self.model, self.inner, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    def digest(self) -> str:
        """Of all bits of weights and optimizer, on rank 0. All must call it."""
        found = xxhash.xxh3_64()
        for name, value in sorted(_tensors("", self.whole())):
            found.update(name.encode())
            found.update(value.numpy().tobytes())
        return found.hexdigest()


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (dict, tuple, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _tensors(f"{path}/{key}", item)


class Way(ABC):
    """How a training is saved and brought back."""

    def __init__(self, job: Sharded, folder: Path) -> None:
        self.job, self.folder, self.optimizer = job, folder, job.inner
        folder.mkdir(exist_ok=True)

    @abstractmethod
    def resume(self) -> int:
        """Bring back what there is; steps that it holds."""

    @abstractmethod
    def turns(self, first: int, until: int) -> Iterator[int]:
        """Numbers of the steps to be trained; after each it is saved what this way saves."""

    @abstractmethod
    def end(self) -> None:
        """The training is over."""


class Log(Way):
    """TranLogs."""

    title = "TranLogs"

    def resume(self) -> int:
        self.optimizer: Any = LoggedOptimizer(self.job.inner, self.folder / "run", self.job.model, durability="process")
        return int(self.optimizer.recover().step)

    def turns(self, first: int, until: int) -> Iterator[int]:
        yield from self.optimizer.steps(until)

    def end(self) -> None:
        self.optimizer.close()


class Saves(Way):
    """Saves everything once in a few steps, under the step's number, and names the newest in a file behind it."""

    def turns(self, first: int, until: int) -> Iterator[int]:
        for number in range(first, until):
            yield number
            if (number + 1) % EVERY == 0:
                self.save(self.folder / str(number + 1))
                dist.barrier()
                if dist.get_rank() == 0:
                    temporary = self.folder / "newest.tmp"
                    temporary.write_text(str(number + 1))
                    temporary.rename(self.folder / "newest")

    def end(self) -> None:
        """What was saved is saved."""

    def resume(self) -> int:
        newest = self.folder / "newest"
        if not newest.exists():
            return 0
        self.load(self.folder / newest.read_text())
        return int(newest.read_text())

    @abstractmethod
    def save(self, path: Path) -> None:
        """Save there."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Bring back what is there."""


class Dcp(Saves):
    """Each process saves its part; any number of them load what they need."""

    title = "DCP save"

    def save(self, path: Path) -> None:
        model, optimizer = get_state_dict(self.job.model, self.job.inner)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=path)

    def load(self, path: Path) -> None:
        model, optimizer = get_state_dict(self.job.model, self.job.inner)
        found = {"model": model, "optimizer": optimizer}
        dcp.load(found, checkpoint_id=path)
        set_state_dict(self.job.model, self.job.inner, model_state_dict=found["model"], optim_state_dict=found["optimizer"])


class OneFile(Saves):
    """Rank 0 gathers everything and saves it."""

    title = "torch.save by rank 0"

    def save(self, path: Path) -> None:
        found = self.job.whole()
        if dist.get_rank() == 0:
            torch.save(found, path)

    def load(self, path: Path) -> None:
        model, optimizer = torch.load(path, weights_only=True)
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(self.job.model, self.job.inner, model_state_dict=model, optim_state_dict=optimizer, options=options)


WAYS: dict[str, type[Way]] = {"log": Log, "dcp": Dcp, "file": OneFile}


def worker(name: str, width: int, until: int, crash: int, folder: Path, out: Path) -> None:
    """One process of them. Rank 0 tells what it had when it began, and, where nothing is saved, after each step."""
    job, rank = Sharded(width), dist.get_rank()
    digests: list[str] = []
    if name == "none":
        for number in range(until):
            job.step(job.inner, number)
            digests.append(job.digest())
        if rank == 0:
            out.write_text(json.dumps(digests))
        return
    way, start = WAYS[name](job, folder), time.perf_counter()
    resumed = way.resume()
    seconds = time.perf_counter() - start
    digest = job.digest() if resumed else ""
    if rank == 0:
        out.write_text(json.dumps({"resumed": resumed, "seconds": round(seconds, 3), "digest": digest}))
    for number in way.turns(resumed, until):
        if number == crash and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        job.step(way.optimizer, number)
    way.end()


def train(world: int, name: str, width: int, until: int, crash: int, folder: Path, out: Path) -> bool:
    """Start that many processes; whether all came to their end. When one dies the others are killed, as by a launcher."""
    meeting = folder / f"{out.name}.meeting"

    def work(rank: int) -> None:
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        worker(name, width, until, crash, folder, out)
        dist.destroy_process_group()

    processes = [_FORK.Process(target=work, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    end = time.monotonic() + _SECONDS_MAX
    while any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.join()
    return not any(process.exitcode for process in processes)


def measure(*, quick: bool) -> dict[str, Any]:
    """All ways for all changes; told while they are taken."""
    width, rows = (WIDTH_QUICK if quick else WIDTH), []
    with measured_folder() as folder:
        references: dict[int, list[str]] = {}
        for world, following in CHANGES_QUICK if quick else CHANGES:
            if world not in references:
                out = Path(folder) / f"reference-{world}"
                _demand(train(world, "none", width, CRASH, -1, Path(folder), out), Path(folder))
                references[world] = json.loads(out.read_text())
            for name, way in WAYS.items():
                row = _try(name, world, following, width, Path(folder), references[world])
                rows.append({"way": way.title, **row})  # type: ignore[attr-defined]
                print(f"  {rows[-1]}", flush=True)
    parameters = 4 * width * (width + 1)
    return {"parameters": parameters, "every": EVERY, "crash": CRASH, "rows": rows}


def _try(name: str, world: int, following: int, width: int, folder: Path, reference: list[str]) -> dict[str, Any]:
    place = folder / f"{name}-{world}-{following}"
    place.mkdir()
    first, second = place / "first", place / "second"
    _demand(not train(world, name, width, CRASH + AFTER, CRASH, place, first), place)
    if not train(following, name, width, CRASH + AFTER, -1, place, second) and not second.exists():
        return {"from": world, "to": following, "verdict": "refused"}
    found = json.loads(second.read_text())
    resumed = found["resumed"]
    is_exact = 0 < resumed <= len(reference) and found["digest"] == reference[resumed - 1]
    return {
        "from": world,
        "to": following,
        "verdict": "exact" if is_exact else "wrong",
        "lost": CRASH - resumed,
        "seconds": found["seconds"],
    }


def _demand(is_as_planned: bool, folder: Path) -> None:
    if not is_as_planned:
        raise SystemExit((folder / "said").read_text()[-3000:])


def main() -> None:
    parser = command_line(__doc__, "a small model, one change: checks the script, not the claim", out="other_world")
    torch.set_num_threads(1)  # a fork has no pool
    take(parser, measure)


if __name__ == "__main__":
    main()
