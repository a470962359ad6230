"""A process that torchrun starts: it trains one of the loops below with others, may kill itself, and writes down what came out.

    torchrun ... child.py NAME RUN OUT KILLS

RUN is "-" for the loop without a log. KILLS is JSON: for each start (see TORCHELASTIC_RESTART_COUNT) null, or [rank, step,
milliseconds]: so long after the beginning of that step, or of the process (step -1), the rank dies by SIGKILL.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.torch.lab import with_plain_loops
from tranlogs.log import preallocator
from tranlogs.recovery import read_facts
from tranlogs.recovery.group import journals
from tranlogs.shipping import in_process_shipping

EPOCHS, BATCHES, BATCH = 3, 16, 5  # on each rank
STEPS = EPOCHS * BATCHES
CHECKPOINT_EVERY = 7
DIES = "dies by SIGKILL"
SAMPLES = 240  # of the data that any number of ranks can share


class Killer:
    """Ends this process at the moment that was drawn for it."""

    _timer: ClassVar[threading.Timer | None] = None

    def __init__(self, kill: list[Any] | None, run: str) -> None:
        self.at = kill[1] if kill and kill[0] == dist_rank() else None
        self._seconds = kill[2] / 1000 if kill else 0.0
        self._loses_disk = bool(kill and len(kill) > 3)
        self._folder = Path(run) / f"rank{dist_rank()}"
        self.step(-1)

    def step(self, number: int) -> None:
        """A step of this number begins."""
        if number != self.at:
            return
        if self._seconds:
            timer = threading.Timer(self._seconds, self._kill)
            timer.daemon = True
            timer.start()
            Killer._timer = timer
        else:
            self._kill()

    @classmethod
    def finish(cls) -> None:
        """Who was to die later dies now: torch's agent hangs if a worker does that waits to be told that all have finished."""
        if cls._timer is not None:
            cls._timer.cancel()
            cls._timer.join()
            die()

    def _kill(self) -> None:
        if self._loses_disk:
            self._wait_for_checkpoints()
            shutil.rmtree(self._folder, ignore_errors=True)
        die()

    def _wait_for_checkpoints(self) -> None:
        """What a lost disk costs is told by the newest checkpoint of all, which threads write."""
        due = (self.at - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY if self.at > 0 else 0
        folders, end = list(self._folder.parent.glob("rank*")), time.monotonic() + 30.0
        wait_until(lambda: time.monotonic() > end or all(newest_checkpoint(folder) >= due for folder in folders))


def newest_checkpoint(journal: Path) -> int:
    """The step of the newest published one; -1 if there is none."""
    return max((int(path.parent.name.split("-")[1]) for path in journal.glob("checkpoints/step-*/manifest.json")), default=-1)


def die() -> None:
    """By SIGKILL. It is said before, since torchrun may tell of another rank, which met the broken connection first."""
    os.write(2, f"{DIES}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something that a thread does."""
    while not is_so():
        time.sleep(0.01)


def die_when(folder: Path, name: str, *_: Any, **options: Any) -> None:
    """Die by SIGKILL as soon as something of that name is in a folder."""
    wait_until(lambda: bool(list(folder.glob(name))))
    die()


def after(seconds: float, call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives that takes long."""
    time.sleep(seconds)
    return call(*arguments)


def die_behind(other: Path, own: Path) -> None:
    """Die by SIGKILL as soon as another rank has begun a timeline that this one has not."""
    before = read_facts(own).timeline
    wait_until(lambda: read_facts(other).timeline > before)
    die()


def dist_rank() -> int:
    return int(os.environ["RANK"])


def data(samples: int | None = None) -> Any:
    """As many batches on every rank; or so many samples, whatever the number of ranks is."""
    generator = torch.Generator().manual_seed(5)
    count = samples or BATCHES * BATCH * int(os.environ["WORLD_SIZE"])
    x, y = torch.randn(count, 8, generator=generator), torch.randint(0, 5, (count,), generator=generator)
    dataset = TensorDataset(x, y)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=3)
    return DataLoader(dataset, batch_size=BATCH, sampler=sampler)


class Net(nn.Module):
    """Layers that are used in another order than they are registered, one of them twice."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.out, self.middle, self.into = nn.Linear(width, 5), nn.Linear(width, width), nn.Linear(8, width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.into(x))))
        return self.out(torch.relu(self.middle(torch.relu(self.middle(hidden)))))  # type: ignore[no-any-return]


class Looked(nn.Module):
    """Rows are looked up, and their gradients sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.net = nn.Embedding(6, 8, sparse=True), Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x + self.rows((x[:, 0] > 0).long()))  # type: ignore[no-any-return]


DDP: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "accumulation": {},
    "buckets": {"bucket_cap_mb": 0.003},
    "unused": {"find_unused_parameters": True},
    "undivided": {},
    "sgd": {},
    "hook": {},
    "bytes": {},
    "power": {},
    "far": {},
    "join": {},
    "resized": {},
    "far resized": {},
    "sparse sgd": {},
    "views kept": {"gradient_as_bucket_view": True},
    "frozen": {"static_graph": True},
    "resized torn": {},
    "copies": {},
    "copies resized": {},
    "copies bare": {},
    "resized store": {},
    "local": {},
    "started": {},
    "unequal": {},
    "unequal sample": {},
    "outside": {},
    "apart": {},
    "images": {},
    "images apart": {},
    "bare by hand": {},
    "bare": {},
    "hurried": {},
    "without one": {},
    "thawed": {},
}


def started() -> dict[str, torch.Tensor]:
    """Weights that somebody else has trained."""
    torch.manual_seed(77)
    return Net().state_dict()


def loads(folder: str) -> dict[str, Any]:
    """What plain torch.distributed.checkpoint makes of a folder under FSDP2, in both forms of an optimizer's state."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    found = {}
    for is_flat in (False, True):
        model: nn.Module = Net()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
        options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
        weights, state = get_state_dict(model, optimizer, options=options)
        whole = {"model": weights, "optimizer": state}
        dcp.load(whole, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"], options=options)
        tensors = dict(model.named_parameters())
        tensors |= {f"{name} {slot}": value for name, p in tensors.items() for slot, value in optimizer.state[p].items()}
        full = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
        found[str(is_flat)] = {name: t.tolist() for name, t in full.items()} | {"lr": optimizer.param_groups[0]["lr"]}
    return found


def train(name: str, run: str, kill: list[Any] | None) -> dict[str, Any]:
    """Train to the end; what came out, to be compared."""
    killer = Killer(kill, run)
    if name.startswith("far"):  # as if each rank's folder lay on a disk of its own machine
        journals.is_readable = lambda summary: summary.rank == dist_rank()
    torch.manual_seed(1)
    if "wide" in name:  # which fills segments
        preallocator.SEGMENT_RECORDS_WANTED = 1
    model = Looked() if name == "sparse sgd" else Net(200 if "wide" in name else 40)
    if name == "started":
        model.load_state_dict(started())
    seed = 100 + dist_rank()
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
    if name == "thawed":
        model.into.requires_grad_(False)
    ddp: Any = model if "bare" in name else DistributedDataParallel(model, **DDP[name])
    if name == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        ddp.register_comm_hook(None, fp16_compress_hook)
    if name == "power":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=4), powerSGD_hook)
    if name == "local":
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook

        ddp.register_comm_hook(PostLocalSGDState(None, None, 4), post_localSGD_hook)
    inner: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if name == "outside":  # what each rank has for itself
        own = nn.Linear(5, 5)
        inner.add_param_group({"params": list(own.parameters())})
    if name.endswith("sgd"):
        inner = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9 if name == "sgd" else 0.0)
    options: dict[str, Any] = {
        "durability": "process",
        "segment_bytes": 1 << 20,
        "copies": 2 if "copies" in name else 1,
        "checkpoint_every": "60KiB" if name == "bytes" else CHECKPOINT_EVERY,
    }
    if run == "-":
        optimizer = with_plain_loops(inner)
    else:
        from tranlogs_torch import LoggedOptimizer
        from tranlogs_torch.distributed import group_messages, process_group

        if "store" in name:
            in_process_shipping.LAG_SECONDS = 0.1
            options["store"] = f"{run}.store"
        if name == "apart":  # as scripts do where only rank 0 saves
            options |= {} if dist_rank() == 0 else {"checkpoint_every": 1000, "durability": "machine"}
        if name == "without one":  # it only evaluates, or so
            process_group.MISSING_SECONDS_WARNED, process_group.MISSING_SECONDS_MAX = 1.0, 3.0
            group_messages.NoteBoard.seconds_max = 3.0  # type: ignore[assignment, method-assign]
            wait_until(lambda: dist_rank() == 0)
        if "sample" in name:
            options["fingerprint"] = "sample"
        if name.startswith("images"):
            options["log"] = "weights"
        optimizer = LoggedOptimizer(inner, run, ddp, **options)
        if name == "resized torn" and kill and dist_rank() == 1:
            optimizer.training_run.journal.checkpoint = partial(die_when, Path(run) / "rank0" / "checkpoints", "step-*-t002-*")
        if name == "hurried" and dist_rank() == 1:
            optimizer.training_run.state.redo = partial(after, 8.0, optimizer.training_run.state.redo)
        if Path(f"{run}.torn").exists() and dist_rank() == 1:
            optimizer.training_run.journal.start = partial(die_behind, Path(run) / "rank0", Path(run) / "rank1")
    if name == "frozen":  # when the reducer counts on it already
        model.into.requires_grad_(False)
    loader = data(SAMPLES if "resized" in name else None)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 11, 0.7)
    report, losses = None, {}
    if run != "-":
        back = Path(f"{run}.back")  # the step to which the run is to be wound back
        report = optimizer.track(scheduler=scheduler, loader=loader).recover(int(back.read_text()) if back.exists() else None)
        if dist_rank() == 0:
            told = {"step": report.step, "exact": report.exact, "timeline": report.timeline, "notes": report.notes}
            print("recovered", told, flush=True)
            with open(os.environ["TOLD"], "a") as file:
                file.write(json.dumps(told) + "\n")
        elif report.notes:
            print("rank", dist_rank(), "notes", report.notes, flush=True)
        with open(f"{run}.ids", "a") as file:
            file.write(f"{optimizer.run_id}\n")
        Path(f"{run}.landed{dist_rank()}").write_text(json.dumps([report.step, everything(model, inner, scheduler)]))
        assert report.exact is not False, report
    step = report.step if report else 0

    def batch(x: torch.Tensor, y: torch.Tensor, number: int) -> None:
        nonlocal step
        if name == "accumulation" and number % 3:
            with ddp.no_sync():
                nn.functional.cross_entropy(ddp(x), y).backward()
            return
        settles = name == "copies" or (len(kill) > 3 if kill else name == "plain")
        if settles and run != "-" and step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            optimizer.training_run.journal.wait_checkpoint()  # while one is being written, the one that is due is put off
        if step == killer.at and "store" in name:
            wait_until(lambda: optimizer.training_run.journal.catalog.watermarks().archived >= step - 1)
        if "unequal" in name and run != "-" and (step == killer.at or step == 2 * CHECKPOINT_EVERY - 1):
            due = CHECKPOINT_EVERY * (2 if step == killer.at else 1)  # the one that ends the division; before it, the last one
            wait_until(lambda: all(newest_checkpoint(Path(f"{run}/rank{rank}")) >= due for rank in (0, 1)))
            optimizer.training_run.journal.wait_checkpoint()  # its folder is there before it is over
        killer.step(step)
        if name == "thawed" and step == 11:
            model.into.requires_grad_(True)
        found = ddp(x)
        loss = nn.functional.cross_entropy(own(found) if name == "outside" else found, y)
        loss.backward()
        for p in model.parameters() if "by hand" in name else ():
            dist.all_reduce(p.grad)
        if name == "undivided":
            for p in model.parameters():
                assert p.grad is not None
                p.grad.mul_(1.0 + dist_rank())
        if ("unequal" in name or name == "images apart") and step == 11 and dist_rank() == 1:
            for p in model.parameters():
                p.grad.mul_(1.5)  # type: ignore[union-attr]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none="kept" not in name)
        step += 1
        losses[step] = loss.item()
        optimizer.log_scalars(loss=loss.item())
        if "resized" in name:
            told = [step, loader.sampler.epoch, x[:, 0].tolist(), everything(model, inner, scheduler)]
            with open(f"{run}.seen{dist_rank()}", "a") as file:
                file.write(json.dumps(told) + "\n")

    if name == "join":
        with ddp.join():
            for x, y in optimizer.batches(loader, len(loader)):
                batch(x, y, 0)
    else:
        for epoch in optimizer.epochs(EPOCHS) if run != "-" else optimizer.epochs(EPOCHS, loader):
            loader.sampler.set_epoch(int(epoch))
            for i, (x, y) in enumerate(epoch, start=getattr(epoch, "batch", 0)):
                batch(x, y, i + 1)
    if run != "-":
        optimizer.close()
        steps, values = optimizer.scalars["loss"]
        losses = dict(zip(steps, values))
    return outcome(model, inner, losses)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> str:
    """A digest of what is the same on all ranks."""
    tensors = [*model.parameters(), *(v for p in model.parameters() for v in optimizer.state[p].values())]
    values = b"".join(t.detach().numpy().tobytes() for t in tensors)
    return _digest(values + json.dumps([scheduler.state_dict(), [g["lr"] for g in optimizer.param_groups]]).encode())


def outcome(model: nn.Module, optimizer: torch.optim.Optimizer, losses: dict[int, float]) -> dict[str, Any]:
    """Digests of everything."""
    tensors = [*model.parameters(), *(v for p in model.parameters() for v in optimizer.state[p].values() if torch.is_tensor(v))]
    rng = (torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate()))
    return {
        "weights": {name: p.tolist() for name, p in model.named_parameters()},
        "weights and state": _digest(b"".join(t.detach().numpy().tobytes() for t in tensors)),
        "buffers": _digest(b"".join(b.numpy().tobytes() for b in model.buffers())),
        "rng": _digest(repr(rng).encode()),
        "losses": {str(k): v for k, v in losses.items()},
        "lr": [group["lr"] for group in optimizer.param_groups],
    }


def _digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def start(attempt: int, arguments: list[str]) -> None:
    """Do what `main` does, in a process that tests/support/torchrun.py has forked."""
    assert attempt == int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    main(arguments)


def main(arguments: list[str]) -> None:
    name, run, out, kills = arguments[0], arguments[1], arguments[2], json.loads(arguments[3])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=5) if name == "hurried" else None)
    run = run.replace("NODE", f"node{dist_rank()}")  # a disk for each process
    from tests.distributed import rechecked, sharded

    if name == "loads":
        found = loads(run)
    else:
        loop = rechecked.train if name in rechecked.LOOPS else sharded.train if name in sharded.LOOPS else train
        found = loop(name, run, kills[attempt] if attempt < len(kills) else None)
    Path(f"{out}.{dist_rank()}").write_text(json.dumps(found))
    Killer.finish()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
