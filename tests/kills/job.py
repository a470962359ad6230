"""One life of a script: a process that runs `script(job)`, may die by SIGKILL, and keeps what is compared.

A script builds everything anew, trains, prints lines with `job.print`, writes files into its working folder, names the places
where it may die with `job.at`, and hands over what is compared with `job.keep`. The same script runs without TranLogs, with it,
and as often as it is killed. What depends on a framework is in `pytorch` and `keras`: how an optimizer is wrapped, and what is
compared of a model. How a process is started is in `launchers`, what it came to is judged in `judge`.

What a life leaves in its folder, beside those of earlier lives:

| file | content |
|---|---|
| files/ | the working folder |
| printed | lines of `job.print`, each in one write, so that no kill leaves a half |
| deaths | a line for each SIGKILL that the job gave itself, written right before it |
| result | what a life that came to its end is judged by |
"""

from __future__ import annotations

import importlib
import os
import pickle
import random
import signal
import sys
from collections import UserList
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import tranlogs.base.failpoints
from tests.public.words import listening
from tranlogs.training.restarts import script_frames

# What a script has of the harness is not its own: its counters are not named as values that start over.
script_frames.OURS.update(("tests.kills", "tests.support", "tests.torch.lab"))
script_frames.OURS.update(("tests.keras.lab", "tests.public.torch.test_scripts"))

Script = Callable[["Job"], None]
Outcome = dict[str, Any]  # path -> something with ==


@dataclass(frozen=True)
class Death:
    """Where a life ends.

    Attributes:
        place: a kind of place of the script ("batch", "epoch end", ...); "any": every kind; "recovery": in `recover()`; with a
            dot in its name: a fail point of the product ("log.after_commit").
        after: number of places of any kind that are passed before.
        calls: number of function calls, and returns from them, behind that place, or from the beginning of `recover()`.
        number: which place of the kind behind those it is, from 1 on.
        rank: of the process in its group.
    """

    place: str
    after: int = 0
    calls: int = 0
    number: int = 1
    rank: int = 0


class Job:
    """One life of a script.

    Args:
        folder: what the script prints and writes lies here, over all lives.
        run: folder of the run; None trains without TranLogs.
        death: where this life ends.
        options: for what logs.
    """

    logs: ClassVar[str] = ""  # "module:class" whose `recover` brings a run back
    defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, run: Path | None = None, death: Death | None = None, **options: Any) -> None:
        self.folder, self.files, self.run, self.death = folder, folder / "files", run, death
        self.options = self.defaults | options
        self.kept: dict[str, Any] = {}
        self.places = UserList[str]()  # of a kind that is not taken for state of the script's loop
        self._calls = 0
        self._report: Callable[[], Any] = lambda: None

    @property
    def settings(self) -> dict[str, Any]:
        """Options, as the callbacks of trainers pass them on."""
        return self.options

    def watch(self, report: Callable[[], Any]) -> None:
        """Say where the report of the recovery is to be found when the script ends."""
        self._report = report

    def at(self, place: str = "batch") -> None:
        """Be at a place where the process can die."""
        self.places.append(place)
        death = self.death
        if death is None or death.place not in (place, "any"):
            return
        if sum(death.place in (passed, "any") for passed in self.places[death.after :]) < death.number:
            return
        if not death.calls:
            self.die()
        sys.setprofile(self._count)

    def tick(self) -> None:
        """Be inside the body of the loop."""
        self.at("batch")

    def print(self, *values: Any) -> None:
        """Print a line."""
        self._append("printed", " ".join(map(str, values)))

    def keep(self, **things: Any) -> None:
        """Compare these at the end."""
        self.kept.update(things)

    def die(self) -> None:
        """End by SIGKILL."""
        sys.setprofile(None)
        self._append("deaths", str(self.death))
        os.kill(os.getpid(), signal.SIGKILL)

    def outcome(self) -> Outcome:
        """Return all that is compared, but printed lines and files."""
        return flatten({name: self.contents(thing) for name, thing in self.kept.items()} | self.random_states())

    def contents(self, thing: Any) -> Any:
        """Return what is compared of a thing that is kept."""
        return thing

    def random_states(self) -> dict[str, Any]:
        """Return the states of the generators that a whole process shares."""
        return {"numpy": np.random.get_state(), "python": random.getstate()}

    def live(self, script: Script) -> None:
        """Run the script in this process, and leave what it came to."""
        self.files.mkdir(parents=True, exist_ok=True)
        os.chdir(self.files)
        os.environ.pop("TRANLOGS_RECHECK", None)  # resumes are proven, as users have it
        if self.death is not None and self.death.place == "recovery":
            self._die_in_recovery()
        elif self.death is not None and "." in self.death.place:
            rule = f"{self.death.place}=kill@{self.death.number}"
            tranlogs.base.failpoints._rules = tranlogs.base.failpoints._parse(rule)
        with listening() as heard:
            script(self)
        report = self._report()
        found = {
            "heard": heard,
            "outcome": self.outcome(),
            "exact": getattr(report, "exact", None),
            "notes": list(getattr(report, "notes", ())),
            "recheck": getattr(report, "recheck", ""),
            "step": getattr(report, "step", 0),
            "position": tuple(getattr(report, name, None) for name in ("loop", "epoch", "batch")),
            "places": list(self.places),
        }
        (self.folder / "result").write_bytes(pickle.dumps(found))

    def _append(self, name: str, line: str) -> None:
        with open(self.folder / name, "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self._calls += 1
        if self.death is not None and self._calls >= self.death.calls:
            self.die()

    def _die_in_recovery(self) -> None:
        module, _, name = self.logs.partition(":")
        logged = getattr(importlib.import_module(module), name)
        recover = logged.recover

        def dying(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            sys.setprofile(self._count)
            recover(optimizer, *arguments, **options)
            self.die()

        logged.recover = dying  # in this process only


@dataclass(frozen=True)
class Start:
    """A life before it begins.

    Attributes:
        job: "module:class" of the Job.
        script: a function of a Job, or "module:function".
        folder: see `Job`.
        run: see `Job`.
        death: see `Job`.
        options: see `Job`.
        arguments: of the script.
    """

    job: str
    script: Script | str
    folder: Path
    run: Path | None
    death: Death | None
    options: dict[str, Any]
    arguments: dict[str, Any]

    def live(self) -> None:
        """Live in this process."""
        script = named(self.script) if isinstance(self.script, str) else self.script
        named(self.job)(self.folder, self.run, self.death, **self.options).live(partial(script, **self.arguments))


def named(name: str) -> Any:
    """Return what "module:name" is called."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def live(start: str, attempt: int = 0) -> None:
    """Live in this process; `start` is a file with a pickled Start."""
    found = pickle.loads(Path(start).read_bytes())
    assert isinstance(found, Start)
    found.live()


def flatten(value: Any, path: str = "") -> Outcome:
    """Return leaves by path: python types, dtypes, shapes, strides and bits."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.to_local() if hasattr(value, "to_local") else value  # of a DTensor, what this rank has
        if value.layout is torch.sparse_coo:
            about = (value.shape, value.is_coalesced())
            return {path: about} | flatten([value._indices(), value._values()], path + ".sparse")
        bits = value.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {path: ("tensor", str(value.dtype), tuple(value.shape), value.stride(), bits)}
    if isinstance(value, np.ndarray):
        return {path: ("ndarray", str(value.dtype), value.shape, value.tobytes())}
    if isinstance(value, dict):
        found: Outcome = {path: (type(value).__name__, [str(key) for key in value])}
        for key, item in value.items():
            found |= flatten(item, f"{path}[{key!r}]")
        return found
    if isinstance(value, (list, tuple)):
        found = {path: (type(value).__name__, len(value))}
        for i, item in enumerate(value):
            found |= flatten(item, f"{path}[{i}]")
        return found
    return {path: (type(value).__name__, repr(value))}
