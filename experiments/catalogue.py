"""All experiments: which script takes one, and how its results are told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tables

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Experiment:
    """One of them.

    Attributes:
        name: of its results: NAME.json and, if there is a picture, NAME.png.
        title: in the report.
        script: that takes it, a file beside this one; it knows --quick and --out.
        tell: makes Markdown of its JSON.
        arguments: of the script, beside those.
        needs: programs or packages that must be there, in words.
        programs, packages: their names.
    """

    name: str
    title: str
    script: str
    tell: Callable[[dict[str, Any]], list[str]]
    arguments: tuple[str, ...] = ()
    needs: str = ""
    programs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def is_possible(self) -> bool:
        """Whether all that it needs is here."""
        return all(shutil.which(program) for program in self.programs) and all(map(find_spec, self.packages))


HEADINGS: dict[str, tuple[Experiment, ...]] = {
    "The TranLogs talk, experiment by experiment": (
        Experiment("step_time", "Where a training step's time goes, and what replay saves", "step_time.py", tables.step_time),
        Experiment("recovered_quality", "Recovered quality", "recovered_quality.py", tables.recovered_quality),
        Experiment("storage", "Storage under thresholds", "bench_storage.py", tables.storage),
        Experiment(
            "store",
            "Asynchronous persistence",
            "bench_store.py",
            tables.store,
            needs="JDK 17 and Maven, for a cluster",
            programs=("java", "mvn"),
        ),
    ),
    "Other systems, same work, same machine, one run": (
        Experiment("peers", "What saves a training loop", "peers.py", tables.peers),
        Experiment(
            "trainers",
            "Trainers, by their own checkpoints",
            "trainers_own.py",
            tables.trainers,
            needs="lightning, transformers, accelerate, Keras and a backend of it",
            packages=("lightning", "transformers", "accelerate", "keras"),
        ),
    ),
    "What TranLogs costs": (
        Experiment("bench", "Steps, log, replay, recovery, disk", "bench.py", tables.bench),
        Experiment("gpu", "On a GPU", "gpu.py", tables.gpu, needs="a CUDA GPU", programs=("nvidia-smi",)),
        Experiment("distributed", "Many processes", "bench_distributed.py", tables.distributed),
        Experiment(
            "bench_monitor",
            "The monitor",
            "bench_monitor.py",
            tables.bench_monitor,
            ("slowdown", "evaluation", "pruning", "idle"),
        ),  # its `storage` is an experiment of its own, above
    ),
}

EXPERIMENTS = {experiment.name: experiment for experiments in HEADINGS.values() for experiment in experiments}
