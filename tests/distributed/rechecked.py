"""Loops of child.py whose newest unit is computed again after a crash.

What happens in a start is an order: {"rank": 1, "turn": 0, "moment": "forward"} ends rank 1 in the first turn of the process's
loop; "step": 5 in the place of "turn" means the batch after step 5. The other entries are options, see `train`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.distributed.child import die, dist_rank
from tests.torch.lab import with_plain_loops

EPOCHS, BATCHES, BATCH = 3, 6, 4  # on each rank
STEPS = EPOCHS * BATCHES
EVERY = 4  # steps between checkpoints


class Net(nn.Module):
    """Layers with all that a rank can have for itself: statistics of batches, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(8, 30), nn.Linear(30, 30), nn.Linear(30, 3)
        self.norm, self.drop = nn.BatchNorm1d(30), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.into(x))))
        return self.out(torch.relu(self.middle(hidden)))  # type: ignore[no-any-return]


def _ddp() -> nn.Module:
    return DistributedDataParallel(Net()) if dist.get_world_size() > 1 else Net()


def _fsdp() -> nn.Module:
    model = Net()
    fully_shard(model.middle)
    return fully_shard(model)


# What the loop has besides: a factor of the loss that counts the turns of the process, and begins anew.
LOOPS: dict[str, Callable[[], nn.Module]] = {
    "ddp rechecked": _ddp,
    "ddp counter": _ddp,
    "ddp implicit": _ddp,
    "ddp copies": _ddp,
    "fsdp rechecked": _fsdp,
    "fsdp counter": _fsdp,
    "fsdp implicit": _fsdp,
    "bare rechecked": Net,
}


def loader_of() -> Any:
    generator = torch.Generator().manual_seed(5)
    count = BATCHES * BATCH * 2
    dataset = TensorDataset(torch.randn(count, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=3)
    return DataLoader(dataset, batch_size=BATCH, sampler=sampler)


class Script:
    """One process of one start.

    Args:
        name: of the loop.
        run: the run's folder; "-" trains without a log.
        order: what happens. Besides the death of a rank: {"recheck": {rank: bool}}, {"change": weight decay} after the recovery
            (see `_change`). A loop without a log changes the same after the step "from", and sets its turns by
            {"turns": {step: turn}}. {"pace": {rank: seconds}} makes a rank slow.
    """

    def __init__(self, name: str, run: str, order: dict[str, Any] | None) -> None:
        self._name, self._run, self._order = name, run, order or {}
        self._turn = self._step = 0
        self._losses: dict[int, float] = {}
        self._seen = ""
        torch.manual_seed(1)
        self._model: Any = LOOPS[name]()
        seed = 100 + dist_rank()
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
        self._inner = torch.optim.AdamW(self._model.parameters(), lr=1e-2)
        self._optimizer = self._wrap()
        self._loader = loader_of()
        self._scheduler = torch.optim.lr_scheduler.StepLR(self._inner if "zero" in name else self._optimizer, 5, 0.7)

    def _wrap(self) -> Any:
        if self._run == "-":
            return with_plain_loops(self._inner)
        from tranlogs_torch import LoggedOptimizer

        recheck = self._order.get("recheck", {}).get(str(dist_rank()), True)
        options: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": EVERY}
        options["copies"] = 2 if "copies" in self._name else 1
        optimizer: Any = LoggedOptimizer(self._inner, self._run, self._model, recheck=recheck, **options)
        recheck = optimizer.training_run._recovery.recheck
        for method, moment in (("_describe_outcome", "asks"), ("_conclude", "concludes")):
            setattr(recheck, method, partial(self._dies_before, moment, getattr(recheck, method)))
        return optimizer

    def _dies_before(self, moment: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._may_die(moment)
        return call(*arguments)

    def _may_die(self, moment: str) -> None:
        order = self._order
        place = self._turn if "turn" in order else self._step
        if (order.get("rank"), order.get("moment", "forward")) == (dist_rank(), moment) and place == order.get(
            "turn", order.get("step")
        ):
            die()

    def _tell(self, *, is_recovered: bool = False) -> None:
        """Write the report down where the recheck has come to another state."""
        report = None if self._run == "-" else self._optimizer.report
        if report is None or (report.recheck == self._seen and not is_recovered):
            return
        self._seen = report.recheck
        about = {
            "begins": is_recovered,
            "step": report.step,
            "recheck": report.recheck,
            "exact": report.exact,
            "rechecked": report.rechecked,
            "notes": report.notes,
        }
        with open(f"{self._run}.reports{dist_rank()}", "a") as file:
            file.write(json.dumps(about) + "\n")

    def train(self) -> dict[str, Any]:
        optimizer = self._optimizer
        if self._run != "-":
            tracked = {} if "implicit" in self._name else {"loader": self._loader}
            report = optimizer.track(scheduler=self._scheduler, **tracked).recover()
            self._step = report.step
            self._tell(is_recovered=True)
            self._change()
        self._loop()
        self._tell()
        if self._run != "-":
            optimizer.close()
            steps, values = optimizer.scalars["loss"]
            self._losses = dict(zip(steps, values))
        from tests.distributed.sharded import outcome

        return outcome(self._model, [self._inner], self._losses)

    def _loop(self) -> None:
        if "implicit" in self._name:  # the run does not see the data, which are the same in each turn
            first = BATCH * dist_rank()
            while self._step < STEPS:
                self._batch(*self._loader.dataset[first : first + BATCH])
        else:
            for epoch in self._optimizer.epochs(EPOCHS, self._loader):
                self._loader.sampler.set_epoch(int(epoch))
                for batch in epoch:
                    self._batch(*batch)

    def _change(self) -> None:
        """Change a hyper-parameter, the state of the optimizer, a tracked object and a buffer, if the order says so."""
        if "change" not in self._order:
            return
        self._optimizer.param_groups[0]["weight_decay"] = self._order["change"]
        for state in self._inner.state.values():
            state["exp_avg"].zero_()
        self._scheduler.gamma = 0.2
        dict(self._model.named_buffers())["module.norm.running_mean"].fill_(0.25)

    def _batch(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._tell()
        self._turn = self._order.get("turns", {}).get(str(self._step), self._turn)
        if self._run == "-" and self._step == self._order.get("from"):
            self._change()
        time.sleep(self._order.get("pace", {}).get(str(dist_rank()), 0))
        self._may_die("forward")
        loss = nn.functional.cross_entropy(self._model(x), y)
        ((1 + self._turn % 5) * loss if "counter" in self._name else loss).backward()
        self._may_die("step")
        self._optimizer.step()
        self._scheduler.step()
        self._optimizer.zero_grad()
        self._optimizer.log_scalars(loss=loss.item())
        self._may_die("boundary")
        self._step += 1
        self._turn += 1
        self._losses[self._step] = loss.item()


def train(name: str, run: str, order: dict[str, Any] | None) -> dict[str, Any]:
    """Train to the end; what came out, to be compared."""
    return Script(name, run, order).train()
