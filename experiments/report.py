"""The report: results.md from the JSON of all experiments, with their pictures beside it.

    python experiments/report.py     # experiments/results -> docs/results.md, docs/results/*.png

A JSON holds all that is said about it, so one experiment can be taken anew, and the report is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tables
from tables import Lines, prose

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Experiment:
    """One of them."""

    name: str  # of its results: NAME.json and, if there is a picture, NAME.png
    title: str  # in the report
    script: str  # that takes it, a file beside this one; it knows --quick and --out
    tell: Callable[[dict[str, Any]], list[str]]  # makes Markdown of its JSON
    needs: tuple[str, ...] = ()  # programs and packages that must be there

    @property
    def missing(self) -> list[str]:
        """What it needs and is not here."""
        return [name for name in self.needs if not shutil.which(name) and not find_spec(name)]


HEADINGS: dict[str, tuple[Experiment, ...]] = {
    "The TranLogs talk, experiment by experiment": (
        Experiment("step_time", "What replay saves of a training step", "step_time.py", tables.step_time),
        Experiment("recovered_quality", "Recovered quality", "recovered_quality.py", tables.recovered_quality),
        Experiment("store", "Asynchronous persistence", "bench_store.py", tables.store, needs=("java", "mvn")),
    ),
    "Other systems, same work, same machine, one run": (
        Experiment("peers", "What saves a training loop", "peers.py", tables.peers),
        Experiment("trainers", "Keras, by its own checkpoints", "keras_own.py", tables.keras_own, needs=("keras",)),
    ),
    "What TranLogs costs": (
        Experiment("bench", "Steps, log, replay, recovery, disk", "bench.py", tables.bench),
        Experiment("gpu", "On a GPU", "gpu.py", tables.gpu, needs=("nvidia-smi",)),
        Experiment("bench_monitor", "The monitor", "bench_monitor.py", tables.bench_monitor),
        Experiment("reduced", "Rounded gradients", "reduced.py", tables.reduced),
        Experiment("policies", "When to take a checkpoint", "policies.py", tables.policies),
    ),
}

EXPERIMENTS = {experiment.name: experiment for experiments in HEADINGS.values() for experiment in experiments}

RESULTS, DOCUMENT = HERE / "results", HERE.parent / "docs" / "results.md"

_INTRODUCTION = """
    After reading this page you know what TranLogs costs and what it saves, by measurement. `make experiments` takes these
    figures, into `experiments/results/`, and writes this page. **Read ratios, not times:** what is compared is taken in turns,
    so that a ratio bears a load that comes and goes."""


def write_report(results: Path, document: Path) -> None:
    """Write the page; pictures go to a folder of its name beside it."""
    found = {name: json.loads(path.read_text()) for name in EXPERIMENTS if (path := results / f"{name}.json").exists()}
    lines = [
        "# Results",
        "",
        *prose(_INTRODUCTION),
        *_circumstances({name: about for experiment, one in found.items() for name, about in _taken(experiment, one)}),
    ]
    for heading, experiments in HEADINGS.items():
        lines += [f"## {heading}", ""]
        for experiment in experiments:
            when = _when(experiment, found.get(experiment.name, {}))
            lines += [f"### {experiment.title}", "", *prose(f"`experiments/{experiment.script}`{', ' * bool(when)}{when}")]
            lines += experiment.tell(found[experiment.name]) if experiment.name in found else _not_taken(experiment)
            lines += _picture(experiment, results, document)
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text("\n".join(lines))
    print(f"written to {document}")


def _not_taken(experiment: Experiment) -> Lines:
    needs = f" It needs {' and '.join(experiment.needs)}." if experiment.needs else ""
    return [f'Not taken yet: `make experiments EXPERIMENTS="{experiment.name}"`.{needs}', ""]


def _picture(experiment: Experiment, results: Path, document: Path) -> Lines:
    """The picture as it was last drawn: here just now, or committed beside the page."""
    folder = document.with_suffix("")
    drawn, shown = results / f"{experiment.name}.png", folder / f"{experiment.name}.png"
    if drawn.exists() and drawn != shown:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drawn, shown)
    return [f"![{experiment.name}]({folder.name}/{shown.name})", ""] if shown.exists() else []


def _taken(experiment: str, results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the circumstances of an experiment, and of parts of it that were taken anew."""
    if "circumstances" in results:  # the GPU kit tells its machine itself
        yield experiment, results["circumstances"]
    for part, found in results.items():
        if isinstance(found, dict) and "circumstances" in found:
            yield f"{experiment}: {part}", found["circumstances"]


def _circumstances(found: dict[str, dict[str, Any]]) -> Lines:
    """Return machines and versions, each once."""
    machines = dict.fromkeys(_machine(about["machine"]) for about in found.values())
    versions = dict.fromkeys(", ".join(map(" ".join, about["versions"].items())) for about in found.values())
    return [line for told in (*machines, *versions) for line in prose(f"{told}.")]


def _machine(about: dict[str, Any]) -> str:
    return (
        f"{about['processor']}, {about['cpus']} processors, {about['memory_bytes'] / (1 << 30):.0f} GiB of memory, "
        f"{about['system'].partition('-')[0]}, no GPU used"
    )


def _when(experiment: Experiment, found: dict[str, Any]) -> str:
    """Return when an experiment was taken and at which commit; of parts that were taken anew, too."""
    told = []
    for name, about in _taken(experiment.name, found):
        others = about["others_busy"]
        busy = f" ({others:.1f} processors kept busy by others)" if others >= 0.3 else ""
        told.append(f"{name.partition(': ')[2]} {about['at'][:10]}, `{about['commit']}`{busy}".strip())
    return "; ".join(told)


if __name__ == "__main__":
    write_report(RESULTS, DOCUMENT)
