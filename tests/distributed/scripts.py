"""Scripts that a group of processes runs, each process with a Job of its own (tests/kills)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.kills.pytorch import Job
from tests.support.rungs import shorten_trials
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError
from tranlogs.checkpoints import writer as checkpoint_writer
from tranlogs.recovery.group import journals
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.shipping import archiver as shipping_archiver
from tranlogs.training import cadence
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.distributed import group_messages, process_group
from tranlogs_torch.elastic.former_checkpoint import FormerCheckpoint
from tranlogs_torch.elastic.shard_loading import Assembly
from tranlogs_torch.loops import group_coordinator

EPOCHS, BATCHES, BATCH = 2, 8, 4  # of each rank
STEPS = EPOCHS * BATCHES
EVERY = 5  # steps between checkpoints
SAMPLES = 72  # of an epoch of `resized`, whatever the number of processes is
DIFFER_FROM = 6  # the step in which rank 1 begins to have gradients of its own
CHANGED_AT = 6  # the turn before which `changed` weights a loss otherwise
THAWED_FROM = 3  # the step from which on a layer trains


class Net(nn.Module):
    """Layers with all that a rank can have for itself: statistics of batches, and random numbers. One is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.middle, self.into = nn.Linear(40, 5), nn.Linear(40, 40), nn.Linear(8, 40)
        self.norm, self.drop = nn.BatchNorm1d(40), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.into(x))))
        found: torch.Tensor = self.out(torch.relu(self.middle(torch.relu(self.middle(hidden)))))
        return found


class Cut(nn.Module):
    """For tensor parallelism: rows come several times, so that they divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm, self.out = nn.Linear(8, 42), nn.Linear(42, 8), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.norm(self.down(torch.relu(self.up(x.repeat(4, 1))))))[: len(x)]
        return found


def sharded(model: Any, layer: str = "middle", **options: Any) -> nn.Module:
    """Give each rank its rows of every parameter."""
    fully_shard(getattr(model, layer), **options)
    return fully_shard(model, **options)


def _tensor_parallel(mesh: Any) -> nn.Module:
    """Cut layers by columns and rows; the gradient of the norm, which is whole, is a sum that the step has to take."""
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "norm": SequenceParallel(sequence_dim=0),
        "out": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    return parallelize_module(Cut(), mesh, plan)


def _two_dimensions() -> nn.Module:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    return sharded(_tensor_parallel(mesh["tp"]), "up", mesh=mesh["dp"])


def _replicated() -> nn.Module:
    """HSDP: two groups, in each of which the parameters are sharded."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return sharded(Net(), mesh=mesh)


def _mixed() -> nn.Module:
    """Built without memory, filled after it was sharded; computed in bfloat16, and gathered parameters stay for a while."""
    with torch.device("meta"):
        model = Cut()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded(model, "up", mp_policy=policy, reshard_after_forward=False)
    model.to_empty(device="cpu")
    for number, parameter in enumerate(model.parameters()):
        torch.manual_seed(number)
        whole = torch.randn(parameter.shape) * 0.1
        with torch.no_grad():
            parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "ddp": lambda: DistributedDataParallel(Net()),
    "ddp buckets": lambda: DistributedDataParallel(Net(), bucket_cap_mb=0.003),
    "ddp static": lambda: DistributedDataParallel(Net(), static_graph=True),
    "ddp unused": lambda: DistributedDataParallel(Net(), find_unused_parameters=True),
    "ddp views": lambda: DistributedDataParallel(Net(), gradient_as_bucket_view=True),
    "ddp cut": lambda: DistributedDataParallel(Cut()),
    "bare": Net,
    "whole": Cut,
    "fsdp": lambda: sharded(Net()),
    "fsdp cut": lambda: sharded(Cut(), "up"),
    "fsdp mixed": _mixed,
    "hsdp": _replicated,
    "tp": lambda: _tensor_parallel(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))),
    "fsdp tp": _two_dimensions,
}


def loader_of(samples: int) -> Any:
    """Return batches of the rank's share of some samples."""
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(samples, 8, generator=generator), torch.randint(0, 5, (samples,), generator=generator))
    return DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, seed=3))


def train(job: Job, *, kind: str = "ddp", odd: str = "") -> None:
    """Train with the others.

    Args:
        job: a life of this process.
        kind: of the model, in `KINDS`.
        odd: words for what else is so:

            absent: rank 1 never comes to its optimizer, since it only evaluates, or so.
            accumulates: it steps with every second batch.
            ahead: rank 0 begins its second batch when rank 1 is at its last one.
            draws: rank 1 draws a random number in the first batch of each process, so that it cannot resume exactly.
            far: each rank's folder lies on a disk of its own machine; of a rank it is below `node` and its number.
            fixed: there are as many samples, whatever the number of processes is.
            frozen: a layer stops to train when DistributedDataParallel counts on it already.
            hook: gradients are summed as 16 bits.
            hurried: a step of redo takes longer than the group's time limit.
            kept: gradients stay where they are, as zeros.
            own: each rank has parameters for itself.
            records: boundaries at which ranks ask each other are recorded, at every tenth step and at checkpoints.
            settles: checkpoints are there before training goes on.
            stores: what is logged is shipped before a rank dies.
            thawed: a layer, of which DistributedDataParallel does not know, trains from some step on.
            trials cheap, trials costly: trials of `log="auto"` are short, and find this; ranks ask each other every other step.
            tight: each step has a file of the log, so that the log behind an old checkpoint goes with it.
            undivided: gradients differ, so that each rank logs all of its own.
            unequal: those of rank 1 differ from some step on.
    """
    words, rank = odd.split(), dist.get_rank()
    if "far" in words:
        put_apart()
        job.run = job.run and job.run.parent / f"node{rank}" / "run"
    if "records" in words:
        cadence._SECONDS, cadence._SHARE, group_coordinator._ASK_SECONDS = 0.0, 1e9, 1e9
    if "trials" in words:
        shorten_trials(0.0 if "cheap" in words else 1.0)
        group_coordinator._ASK_STEPS = 2
    if "hurried" in words:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5))
    shipping_archiver.LAG_SECONDS = 0.1
    seed()
    model: Any = KINDS[kind]()
    inside: Any = getattr(model, "module", model)
    if "thawed" in words:
        inside.into.requires_grad_(False)
        model = DistributedDataParallel(inside)
    if "hook" in words:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    seed(100 + rank)
    loader = loader_of(SAMPLES if "fixed" in words else BATCHES * BATCH * dist.get_world_size())
    inner, own = torch.optim.AdamW(model.parameters(), lr=1e-2), nn.Linear(5, 5)
    if "own" in words:
        inner.add_param_group({"params": list(own.parameters())})
    if "absent" in words:
        process_group.MISSING_SECONDS_WARNED, process_group.MISSING_SECONDS_MAX = 1.0, 3.0
        group_messages.NoteBoard.seconds_max = 3.0  # type: ignore[assignment, method-assign]
        _wait_until(lambda: rank == 0)
    optimizer = job.wrap(inner, model)
    if "frozen" in words:
        inside.into.requires_grad_(False)
    die_amid(job, optimizer)
    if "hurried" in words and rank == 1 and job.run:
        optimizer.training_run.state.redo = partial(_after, 8.0, optimizer.training_run.state.redo)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    job.start(optimizer, loader=loader, scheduler=scheduler)
    has_drawn = "draws" not in words or rank != 1
    for epoch in optimizer.epochs(EPOCHS, loader):
        loader.sampler.set_epoch(int(epoch))
        for number, (x, y) in epoch.enumerate():
            step = int(epoch) * BATCHES + number
            if "stores" in words and job.death and step == 11:
                _wait_until(lambda: optimizer.training_run.journal.catalog.watermarks().archived >= 10)
            if "settles" in words:
                if job.run:
                    optimizer.training_run.journal.wait_checkpoint()
                job.at("begin")  # no rank goes beyond this step if one dies here
            if "tight" in words and job.run and optimizer.training_run.journal.log.wal is not None:
                optimizer.training_run.journal.log.wal.roll()
            if "ahead" in words and job.death and step == 1:
                _wait_until((job.folder.parent / "ahead").exists)
            if "ahead" in words and rank == 1 and step == STEPS - 1:
                (job.folder.parent / "ahead").touch()
            if "thawed" in words:
                inside.into.requires_grad_(step >= THAWED_FROM)
            if "tp" in kind:  # ranks that share a model have the same batches
                dist.broadcast(x, 0), dist.broadcast(y, 0)
            is_part = "accumulates" in words and number % 2 == 0
            with model.no_sync() if is_part and "ddp" in kind else contextlib.nullcontext():
                found = model(x).float()
                loss = nn.functional.cross_entropy(own(found) if "own" in words else found, y)
                loss.backward()
            for p in inside.parameters():
                if "undivided" in words or ("unequal" in words and step >= DIFFER_FROM and rank == 1):
                    p.grad.mul_(1.5 + rank)
            if kind in ("ddp", "fsdp"):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            job.at("backward")
            if not has_drawn:
                has_drawn = bool(torch.rand(1) < 2)
            if not is_part:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none="kept" not in words)
            job.at("batch")
            job.print(f"epoch {int(epoch)}, batch {number}: loss {loss.item()}")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


def rewound(job: Job, *, kind: str, to: int) -> None:
    """Train on from an older step."""
    job.recover_at = to
    train(job, kind=kind)


def two_loops(job: Job) -> None:
    """Train epochs, validate together at random points, change the rate and the weights, and train a number of batches."""
    seed()
    model = DistributedDataParallel(Net())
    seed(100 + dist.get_rank())
    loader = loader_of(24)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    state = optimizer.remember(losses=[])
    job.start(optimizer, loader=loader)

    def train_on(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        job.at("batch")

    for epoch in optimizer.epochs(2, loader):
        for x, y in epoch:
            train_on(x, y)
    job.at("between")
    with torch.no_grad():
        loss = model.module(torch.randn(6, 8)).square().sum()
        dist.all_reduce(loss)
        state.losses = [*state.losses, loss.item()]
        for parameter in model.parameters():
            parameter.mul_(0.9)
    optimizer.param_groups[0]["lr"] *= 0.5
    job.at("between")
    for x, y in optimizer.batches(loader, 5):
        train_on(x, y)
    job.keep(model=model, optimizer=optimizer, state=state)
    optimizer.close()


def uneven(job: Job) -> None:
    """Each rank has more turns without a step than the one before, at the end of its first loop."""
    cadence._SECONDS, cadence._SHARE, group_coordinator._ASK_SECONDS = 0.0, 1e9, 1e9
    seed()
    model = DistributedDataParallel(Net(), broadcast_buffers=False)
    seed(100 + dist.get_rank())
    loader = loader_of(24)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    state = optimizer.remember(turns=0)
    job.start(optimizer, loader=loader)
    for until in (10 + 2 * dist.get_rank(), 8):
        for x, y in optimizer.batches(loader, until=until):
            state.turns += 1
            if until == 8 or state.turns <= 10:
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                job.at("batch")
                job.print(f"{until}: loss {loss.item()}")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def outside(job: Job) -> None:
    """Take steps in a loop of the library, and then steps that no loop of it knows."""
    shorten_trials(1.0)
    seed()
    model = DistributedDataParallel(Net())
    seed(100 + dist.get_rank())
    loader = loader_of(24)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    job.start(optimizer, loader=loader)

    def train_on(x: torch.Tensor, y: torch.Tensor, place: str) -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.at(place)
        job.print(f"{place}: loss {loss.item()}")

    for x, y in optimizer.batches(loader, until=20):
        train_on(x, y, "batch")
    if dist.get_rank() == 0:  # one rank alone: the others wait for nothing
        model.module(torch.zeros(4, 8))
    for _ in range(4):
        train_on(torch.rand(4, 8), torch.randint(0, 5, (4,)), "outside")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def changed(job: Job, *, kind: str = "ddp") -> None:
    """Train; at a start after a crash, rank 1 weights its loss otherwise. The twin does so before its seventh batch."""
    seed()
    model = KINDS[kind]()
    seed(100 + dist.get_rank())
    loader = loader_of(BATCHES * BATCH * dist.get_world_size())
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    state = optimizer.remember(weight=1.0, turn=0)
    job.start(optimizer, loader=loader)
    is_other = dist.get_rank() == 1
    if is_other and job.run is not None and job.reports[-1].step:
        state.weight = 3.0
    for x, y in optimizer.batches(loader, STEPS):
        if is_other and job.run is None and state.turn == CHANGED_AT:
            state.weight = 3.0
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y) * state.weight).backward()
        job.at("backward")
        optimizer.step()
        state.turn += 1
        job.at("batch")
    job.keep(model=model, optimizer=optimizer, weight=state.weight)
    optimizer.close()


def resized(job: Job, *, kind: str = "ddp", far: bool = False) -> None:
    """Train on samples that any number of processes share, and print what this rank lands on and what each step came to."""
    if far:
        put_apart()
    seed()
    model: Any = KINDS[kind]()
    seed(100 + dist.get_rank())
    loader = loader_of(SAMPLES)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    die_amid(job, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 11, 0.7)
    job.start(optimizer, loader=loader, scheduler=scheduler)
    report = job.reports[-1]
    if report.step:
        optimizer.training_run.auxiliary.pass_loop()  # the random numbers with which a loop goes on are a rank's own, too
    step = report.step
    about = {"exact": report.exact, "timeline": report.timeline, "notes": report.notes}

    def tell(**words: Any) -> None:
        whole = everything(model, optimizer.inner) if step else {}
        job.print(json.dumps({"step": step, "whole": whole, "own": own_state(model), **words}))

    tell(landed=about)
    for epoch in optimizer.epochs(EPOCHS):
        loader.sampler.set_epoch(int(epoch))
        for x, y in epoch:
            if dist.is_initialized():
                dist.barrier()  # no rank dies before all have finished the step before
            job.at("begin")
            samples = x[:, 0].tolist()
            if "tp" in kind:
                dist.broadcast(x, 0), dist.broadcast(y, 0)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 2:  # where they lie about at the boundary they are state, too
                optimizer.zero_grad()
            tell(epoch=int(epoch), samples=samples)
    optimizer.close()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return digests of whole parameters and whole optimizer state, by name; all processes must call it."""
    found: dict[str, str] = {}
    for name, p in model.named_parameters():
        kept = {key: value for key, value in optimizer.state[p].items() if torch.is_tensor(value)}
        for key, value in {"": p.detach(), **kept}.items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[f"{name.removeprefix('module.')} {key}"] = xxhash.xxh3_64_hexdigest(whole.numpy().tobytes())
    return found


def own_state(model: nn.Module) -> str:
    """Return a digest of what is a rank's own."""
    states = torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())
    return xxhash.xxh3_64_hexdigest(repr(states).encode() + b"".join(b.numpy().tobytes() for b in model.buffers()))


def load_export(job: Job) -> None:
    """Load a folder as plain torch.distributed.checkpoint does under FSDP2, in both forms of an optimizer's state."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    for is_flat in (False, True):
        model = sharded(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
        options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
        weights, state = get_state_dict(model, optimizer, options=options)
        whole = {"model": weights, "optimizer": state}
        dcp.load(whole, checkpoint_id=str(job.run))
        set_state_dict(model, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"], options=options)
        job.print(json.dumps(everything(model, optimizer) | {"lr": optimizer.param_groups[0]["lr"]}))


def be_refused(job: Job) -> None:
    """Print what is refused, and in which words."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    def said(name: str, *hook: Any, options: dict[str, Any] | None = None, wraps: bool = True) -> None:
        model: Any = DistributedDataParallel(Net()) if wraps else Net()
        if hook:
            model.register_comm_hook(*hook)
        assert job.run is not None
        try:
            settings = job.options | (options or {})
            optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), job.run / name, model, **settings)
            optimizer.recover()
            with model.join() if name == "join" else contextlib.nullcontext():
                for _ in optimizer.steps(until=2, stateless=True):
                    model(torch.randn(4, 8)).sum().backward()
                    optimizer.step()
        except UsageError as error:
            job.print(f"{name}: {error}")

    said("power", PowerSGDState(None, start_powerSGD_iter=4), powerSGD_hook)
    said("local", PostLocalSGDState(None, None, 4), post_localSGD_hook)
    said("copies", options={"copies": 2}, wraps=False)
    said("apart", options={} if dist.get_rank() == 0 else {"checkpoint_every": 1000, "durability": "machine"})
    said("overhead", options={"log": "auto", "overhead": "5%" if dist.get_rank() == 0 else "10%"})
    said("inputs", options={"log": "inputs"}, wraps=False)
    said("join")


def run_example(attempt: int, path: str) -> None:
    """Run a script of the examples, which ends the process group."""
    os.environ.pop("TRANLOGS_RECHECK", None)
    os.chdir(os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def put_apart() -> None:
    """Let each rank see its own folder only, and those that it finds beside its own, as if others lay on other machines."""
    rank = dist.get_rank()
    journals.is_readable = lambda summary: summary.rank == rank
    Assembly._can_read = lambda self, other: self._owners[other] == rank  # type: ignore[method-assign]


def die_amid(job: Job, optimizer: Any) -> None:
    """Prepare a death inside the product: its place is one of these words."""
    if job.death is None or job.run is None:
        return
    journal, ranks = optimizer.training_run.journal, job.run
    match job.death.place:
        case "compacting":  # a former rank's checkpoint is half written
            checkpoint_writer.seal_manifest = lambda *_: job.die()
        case "reading":  # and is read
            FormerCheckpoint.read_piece = lambda *_: job.die()  # type: ignore[method-assign, assignment, return-value]
        case "changing":  # rank 0 has written the first checkpoint of another number of processes, this rank has not
            before = set(ranks.glob("rank0/checkpoints/step-*"))
            journal.checkpoint = lambda *_, **__: _die_when(job, lambda: set(ranks.glob("rank0/checkpoints/step-*")) > before)
        case "rewinding":  # rank 0 has begun a timeline, this rank has not
            first, mine = ranks / "rank0", ranks / f"rank{dist.get_rank()}"
            timeline = read_facts(mine).rows.timeline
            journal.start = lambda *_, **__: _die_when(job, lambda: read_facts(first).rows.timeline > timeline)
        case "checkpoint":  # all have agreed on one of a step, rank 0 has it, and this rank has not committed the step
            boundary, step = journal.boundary, job.death.number

            def die_before(*arguments: Any, **options: Any) -> None:
                if journal.step == step:
                    _die_when(job, lambda: bool(list(ranks.glob(f"rank0/checkpoints/step-*{step}-t*"))))
                boundary(*arguments, **options)

            journal.boundary = die_before


def _die_when(job: Job, is_so: Callable[[], bool]) -> None:
    _wait_until(is_so)
    job.die()


def _wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.01)


def _after(seconds: float, call: Callable[..., Any], *arguments: Any) -> Any:
    time.sleep(seconds)
    return call(*arguments)


def newest_checkpoint(journal: Path) -> int:
    """Return the step of the newest published one; -1 if there is none."""
    return max(_steps(journal), default=-1)


def _steps(journal: Path) -> Iterator[int]:
    return (int(path.parent.name.split("-")[1]) for path in journal.glob("checkpoints/step-*/manifest.json"))
