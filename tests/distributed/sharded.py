"""Loops of child.py whose parameters are sharded over the processes."""

from __future__ import annotations

import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.child import BATCHES, SAMPLES, Killer, _digest, data, die, die_behind, die_when, dist_rank
from tests.torch.lab import with_plain_loops
from tranlogs.checkpoints import writer as checkpoint_writer
from tranlogs.recovery.group import journals
from tranlogs.shipping import in_process_shipping
from tranlogs_torch.elastic.former_checkpoint import FormerCheckpoint
from tranlogs_torch.elastic.shard_loading import Assembly
from tranlogs_torch.state.naming import clean

EPOCHS = 2
EVERY = 7  # steps between checkpoints
STEPS = EPOCHS * BATCHES


class Tall(nn.Module):
    """Layers whose rows do not divide evenly; the last has fewer rows than there are processes, if these are three."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(8, 40), nn.Linear(40, 40), nn.Linear(40, 2)
        self.norm, self.drop = norm(40), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.into(x))))
        return self.out(torch.relu(self.middle(torch.relu(self.middle(hidden)))))  # type: ignore[no-any-return]


def _fully_sharded(model: Tall, **options: Any) -> nn.Module:
    fully_shard(model.middle, **options)
    fully_shard(model, **options)
    return model


def _plain(world: int) -> nn.Module:
    return _fully_sharded(Tall())


def _mixed(world: int) -> nn.Module:
    """Built without memory, filled after it was sharded; computed in bfloat16, and gathered parameters stay for a while."""
    with torch.device("meta"):
        model = Tall(nn.LayerNorm)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _fully_sharded(model, mp_policy=policy, reshard_after_forward=False)
    model.to_empty(device="cpu")
    for number, parameter in enumerate(model.parameters()):
        torch.manual_seed(number)
        whole = torch.randn(parameter.shape) * 0.1
        with torch.no_grad():
            parameter.copy_(_as(parameter, whole))
    return model


def _as(parameter: Any, whole: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def _replicated(world: int) -> nn.Module:
    """HSDP: two groups, in each of which the parameters are sharded."""
    return _fully_sharded(Tall(), mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))


class Cut(nn.Module):
    """For tensor parallelism: rows come several times, so that they divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm, self.out = nn.Linear(8, 42), nn.Linear(42, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.down(torch.relu(self.up(x.repeat(4, 1))))))[: len(x)]  # type: ignore[no-any-return]


def _cut(mesh: Any) -> nn.Module:
    """Layers cut by columns and rows; the gradient of the norm, which is whole, is a sum that the step has to take."""
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "norm": SequenceParallel(sequence_dim=0),
        "out": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    return parallelize_module(Cut(), mesh, plan)


def _tensor_parallel(world: int) -> nn.Module:
    return _cut(init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)))


def _two_dimensions(world: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    model = _cut(mesh["tp"])
    fully_shard(model.up, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def _of_any_number(world: int) -> nn.Module:
    """Sharded, with four processes also replicated; whole in one process."""
    return Tall() if world == 1 else _replicated(world) if world == 4 else _plain(world)


def _of_any_kind(world: int) -> nn.Module:
    """Whole in one process, the same in two, sharded over three."""
    return Tall() if world == 1 else DistributedDataParallel(Tall()) if world == 2 else _plain(world)


def _of_any_mesh(world: int) -> nn.Module:
    return _tensor_parallel(world) if world == 2 else _two_dimensions(world)


LOOPS: dict[str, Any] = {
    "fsdp": _plain,
    "fsdp accumulation": _plain,
    "fsdp tight": _plain,
    "fsdp mixed": _mixed,
    "hsdp": _replicated,
    "tp": _tensor_parallel,
    "fsdp tp": _two_dimensions,
    "fsdp optimizers": _plain,
    "resharded": _of_any_number,
    "far resharded": _of_any_number,
    "resharded ddp": _of_any_kind,
    "resharded tp": _of_any_mesh,
}
TORN = ("resharded", "resharded ddp")  # where one may die amid the change


def optimizers_of(model: Any, name: str) -> list[torch.optim.Optimizer]:
    """One, or one of each kind."""
    if name != "fsdp optimizers":
        return [torch.optim.AdamW(model.parameters(), lr=1e-2)]
    kinds = torch.optim
    return [
        kinds.SGD([model.into.weight], lr=1e-2, momentum=0.9, nesterov=True),
        kinds.Adagrad([model.into.bias, model.norm.weight], lr=1e-2),
        kinds.Muon([model.middle.weight], lr=1e-2),
        kinds.Adam([model.middle.bias], lr=1e-2, amsgrad=True, fused=True),
        kinds.AdamW([model.out.weight, model.norm.bias], lr=1e-2, foreach=True, amsgrad=True),
        kinds.RMSprop([model.out.bias], lr=1e-2, momentum=0.5, centered=True),
    ]


def train(name: str, run: str, kill: list[Any] | None) -> dict[str, Any]:
    """Train to the end; what came out, to be compared."""
    killer = Killer(kill, run)
    if name.startswith("far"):
        put_apart()
    torch.manual_seed(1)
    model = LOOPS[name](dist.get_world_size())
    seed = 100 + dist_rank()
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
    inner = optimizers_of(model, name)
    optimizers: list[Any] = [*inner]
    if run == "-":
        optimizers[0] = with_plain_loops(inner[0])
    else:
        from tranlogs_torch import LoggedOptimizer

        options: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": EVERY}
        if name in ("resharded", "resharded ddp", "fsdp tight"):  # the old checkpoints must outlive the first new one
            options["keep"] = 1
        if name == "fsdp optimizers":
            in_process_shipping.LAG_SECONDS = 0.1
            options |= {"store": f"{run}.store", "checkpoint_every": EVERY * len(inner)}
        optimizers[0] = LoggedOptimizer(inner[0], run, model, **options)
        optimizers[1:] = [optimizers[0].add_optimizer(one, name=type(one).__name__) for one in inner[1:]]
        if name in TORN and kill and kill[3:] in (["compacting"], ["reading"]):
            if dist_rank() == kill[0]:
                die_amid_the_change(kill[3])
        elif name in TORN and kill and len(kill) > 3 and dist_rank() == kill[0]:
            optimizers[0].training_run.journal.checkpoint = partial(die_when, Path(run) / "rank0" / "checkpoints", kill[3])
        if Path(f"{run}.torn").exists() and dist_rank() == 1:
            optimizers[0].training_run.journal.start = partial(die_behind, Path(run) / "rank0", Path(run) / "rank1")
    optimizer = optimizers[0]
    if name == "fsdp tight" and kill and dist_rank() == kill[0]:
        die_amid_a_checkpoint(optimizer.training_run.journal, kill[3], Path(run) / "rank0")
    loader = data(SAMPLES if "resharded" in name else None)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 11, 0.7)
    report, losses = None, {}
    if run != "-":
        if name == "fsdp mixed":
            with torch.enable_grad():
                model.eval()(torch.zeros(1, 8))  # leaves whole parameters in the place of the sharded ones
            model.train()
        back = Path(f"{run}.back")  # the step to which the run is to be wound back
        report = optimizer.track(scheduler=scheduler, loader=loader).recover(int(back.read_text()) if back.exists() else None)
        if dist_rank() == 0:
            told = {"step": report.step, "exact": report.exact, "timeline": report.timeline, "notes": report.notes}
            print("recovered", told, flush=True)
            with open(os.environ["TOLD"], "a") as file:
                file.write(json.dumps(told) + "\n")
        assert report.exact is not False, report
        if report.step:
            optimizer.training_run.auxiliary.pass_loop()  # the random numbers with which a loop goes on are a rank's own, too
    told = (lambda *about: None) if run == "-" or "resharded" not in name else partial(tell, run, model, inner[0])
    told("landed", report.step if report else 0)
    step = report.step // len(inner) if report else 0

    def batch(x: torch.Tensor, y: torch.Tensor, number: int) -> None:
        nonlocal step
        wal = optimizer.training_run.journal.log.wal if name == "fsdp tight" and run != "-" else None
        if wal is not None:
            wal.roll()  # so that the log behind an old checkpoint goes with it
        samples = x[:, 0].tolist()
        if "tp" in name:  # ranks that share a model have the same batches
            dist.broadcast(x, 0)
            dist.broadcast(y, 0)
        if "accumulation" in name:
            model.set_requires_gradient_sync(number % 3 == 0)
            nn.functional.cross_entropy(model(x), y % 2).backward()
            if number % 3:
                return
            loss = torch.zeros(())
            killer.step(step)
        else:
            if "resharded" in name and kill and kill[1] == step:
                dist.barrier()  # every rank has committed the step before the one dies
            killer.step(step)
            loss = nn.functional.cross_entropy(model(x).float(), y % 2)
            loss.backward()
        if "fsdp tp" not in name and name != "resharded tp":  # torch does not add up norms over several meshes
            is_ours = run != "-" and number % 2 == 0 and len(inner) == 1  # in the order of its groups
            theirs = getattr(model, "clip_grad_norm_", partial(nn.utils.clip_grad_norm_, model.parameters()))
            (optimizer.clip_grad_norm_ if is_ours else theirs)(0.5)
        for one in optimizers:
            one.step()
        scheduler.step()
        step += 1
        if "resharded" not in name or step % 2:  # where they lie about at the boundary they are state, too
            for one in optimizers:
                one.zero_grad()
        losses[step] = loss.item()
        optimizer.log_scalars(loss=loss.item())
        told("taken", step, loader.sampler.epoch, samples)
        if "mixed" in name and number % 5 == 0:
            with torch.no_grad():
                model.eval()(x)
            model.train()

    epochs = EPOCHS + ("resharded" in name)
    for epoch in optimizer.epochs(epochs) if run != "-" else optimizer.epochs(epochs, loader):
        loader.sampler.set_epoch(int(epoch))
        for i, (x, y) in enumerate(epoch, start=getattr(epoch, "batch", 0)):
            if "resharded" in name:
                optimizer.zero_grad()
            batch(x, y, i + 1)
    if run != "-":
        optimizer.close()
        steps, values = optimizer.scalars["loss"]
        losses = dict(zip((step // len(inner) for step in steps), values))
    return outcome(model, inner, losses)


def die_amid_the_change(moment: str) -> None:
    """Die where a former rank's checkpoint is half written, or while it is read."""
    if moment == "compacting":
        checkpoint_writer.seal_manifest = lambda *_: die()
    else:
        FormerCheckpoint.read_piece = lambda *_: die()  # type: ignore[method-assign, assignment, return-value]


def put_apart() -> None:
    """Let each rank see its own folder only, and those that it finds beside its own, as if others lay on other machines."""
    journals.is_readable = lambda summary: summary.rank == dist_rank()
    Assembly._can_read = lambda self, rank: self._owners[rank] == dist_rank()  # type: ignore[method-assign]


def die_amid_a_checkpoint(journal: Any, step: int, other: Path) -> None:
    """Die when all have agreed on a checkpoint of a step and rank 0 has it, before this rank has committed that step."""
    boundary = journal.boundary

    def die_before(*arguments: Any, **options: Any) -> None:
        if journal.step == step:
            die_when(other / "checkpoints", f"step-*{step}-t*")
        boundary(*arguments, **options)

    journal.boundary = die_before


def tell(run: str, model: nn.Module, optimizer: torch.optim.Optimizer, what: str, step: int, *more: Any) -> None:
    """Write down what this rank has come to."""
    whole = everything(model, optimizer) if step else {}
    about = {"what": what, "step": step, "whole": whole, "own": own(model), "more": more}
    with open(f"{run}.told{dist_rank()}", "a") as file:
        file.write(json.dumps(about) + "\n")


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Digests of whole parameters and whole optimizer state, by name; all processes must call it."""
    found: dict[str, str] = {}
    for name, p in model.named_parameters():
        kept = {key: value for key, value in optimizer.state[p].items() if torch.is_tensor(value)}
        for key, value in {"": p.detach(), **kept}.items():
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[f"{name.removeprefix('module.')} {key}"] = _digest(whole.numpy().tobytes())
    return found


def own(model: nn.Module) -> str:
    """A digest of what is a rank's own."""
    rng = torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())
    return _digest(repr(rng).encode() + b"".join(b.numpy().tobytes() for b in model.buffers()))


def outcome(model: nn.Module, optimizers: list[torch.optim.Optimizer], losses: dict[int, float]) -> dict[str, Any]:
    """Digests of everything that is this rank's, and the whole weights."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    held = [o.state.get(p, {}) for o in optimizers for g in o.param_groups for p in g["params"]]
    tensors = [*model.parameters(), *(value for one in held for value in one.values() if torch.is_tensor(value))]
    rng = (torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate()))
    return {
        "weights": whole_weights(model),
        "weights and state": _digest(b"".join(_local(t).detach().numpy().tobytes() for t in tensors)),
        "buffers": _digest(b"".join(b.numpy().tobytes() for b in model.buffers())),
        "rng": _digest(repr(rng).encode()),
        "losses": {str(k): v for k, v in losses.items()},
        "lr": [group["lr"] for o in optimizers for group in o.param_groups],
    }


def whole_weights(model: nn.Module) -> dict[str, list[Any]]:
    """By the names that the module has unwrapped; all processes must call it."""
    named = {clean(name): p for name, p in model.named_parameters()}
    return {n: (p.full_tensor() if hasattr(p, "full_tensor") else p).tolist() for n, p in named.items()}


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]
