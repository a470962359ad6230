"""The examples of the documentation as scripts of a Job: as they are written, but for smaller numbers."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import sklearn.datasets  # noqa: F401  # imported once, and not by each life
import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

import tranlogs_torch
from tests.kills.pytorch import Job
from tests.support.examples import shortened
from tests.torch.nets import seed
from tranlogs.training import Remembered
from tranlogs_torch import RecoveryReport

KEPT = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, Remembered, SimpleNamespace)


class Nothing:
    """The report of a plain optimizer."""

    batch = 0


def example(job: Job, *, name: str, constants: dict[str, int], remembers: bool = True) -> None:
    """Run an example; it may die behind each step.

    Args:
        job: a life of it. Without a run, its optimizer is a plain one.
        name: of the file, without its ending.
        constants: to be set to other numbers.
        remembers: False: `optimizer.remember(...)` is a plain namespace.
    """
    file = shortened(name, job.folder, **constants)
    if not remembers:
        file.write_text(with_plain_namespace(file.read_text()))
    seed()  # it seeds itself the generators that it draws from
    tranlogs_torch.LoggedOptimizer = wrapper(job)  # type: ignore[misc,assignment]  # in this process only
    register_optimizer_step_post_hook(lambda *_: job.at("step"))
    names = runpy.run_path(str(file), {"print": printer(job)}, "__main__")
    job.keep(**{key: thing for key, thing in names.items() if isinstance(thing, KEPT)})


def with_plain_namespace(text: str) -> str:
    """Return an example that keeps nothing of its loop in the run."""
    text, count = re.subn(r"(\w+)\.remember\(", "SimpleNamespace(", text)
    assert count == 1
    return text.replace("import torch\n", "from types import SimpleNamespace\n\nimport torch\n", 1)


def wrapper(job: Job) -> Callable[..., Any]:
    """Return what an example calls as `LoggedOptimizer`."""

    def wrap(inner: torch.optim.Optimizer, run: str, model: Any, **options: Any) -> Any:
        optimizer = job.wrap(inner, model, **options)
        return optimizer if job.run is not None else with_plain_methods(optimizer)

    return wrap


def with_plain_methods(optimizer: Any) -> Any:
    """Give a plain optimizer the methods that a Job calls for other scripts."""
    loaders, losses, steps, epochs = list[Any](), list[float](), list[int](), optimizer.epochs

    def track(**tracked: Any) -> Any:
        loaders.extend(thing for thing in tracked.values() if isinstance(thing, torch.utils.data.DataLoader))
        return optimizer

    optimizer.track, optimizer.recover = track, Nothing
    optimizer.log_scalars = lambda loss: (losses.append(loss.item()), steps.append(len(losses)))
    optimizer.scalars = {"loss": (steps, losses)}
    optimizer.epochs = lambda count: epochs(count, *loaders)
    optimizer.add_optimizer = lambda other, **_: other
    return optimizer


def printer(job: Job) -> Callable[..., None]:
    """Return what an example calls as `print`."""

    def write(*values: Any, flush: bool = False) -> None:
        if isinstance(values[0], RecoveryReport):
            job.tell(values[0])
        elif not isinstance(values[0], Nothing):
            job.print(*values)

    return write
