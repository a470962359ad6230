"""The report: results.md from the JSON of all experiments, with their pictures beside it.

    python experiments/report.py     # experiments/results -> docs/results.md, docs/results/*.png

A JSON holds all that is said about it, so one experiment can be taken anew, and the report is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catalogue import EXPERIMENTS, HEADINGS, HERE, Experiment
from tables import Lines, prose, table

RESULTS, DOCUMENT = HERE / "results", HERE.parent / "docs" / "results.md"

_INTRODUCTION = """
    After reading this page you know what TranLogs costs and what it saves, by measurement. `make experiments` takes these
    figures and writes this page; `experiments/results/` has all that was measured. **Read ratios, not times:** what is compared
    is taken in turns, in one process or in the same minutes, so that a ratio bears a load that comes and goes."""


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
            lines += [f"### {experiment.title}", "", f"`experiments/{experiment.script}`", ""]
            lines += experiment.tell(found[experiment.name]) if experiment.name in found else _not_taken(experiment)
            lines += _picture(experiment, results, document)
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text("\n".join(lines))
    print(f"written to {document}")


def _not_taken(experiment: Experiment) -> Lines:
    needs = f" It needs {experiment.needs}." if experiment.needs else ""
    return [f'Not taken yet: `make experiments EXPERIMENTS="{experiment.name}"`.{needs}', ""]


def _picture(experiment: Experiment, results: Path, document: Path) -> Lines:
    """The picture as it was last drawn: here just now, or committed beside the page."""
    folder = document.with_suffix("")
    drawn, shown = results / f"{experiment.name}.png", folder / f"{experiment.name}.png"
    if drawn.exists() and drawn != shown:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(drawn, shown)
    return [f"![{experiment.title}]({folder.name}/{shown.name})", ""] if shown.exists() else []


def _taken(experiment: str, results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the circumstances of an experiment, and of parts of it that were taken anew."""
    if "circumstances" in results:  # the GPU kit tells its machine itself
        yield experiment, results["circumstances"]
    for part, found in results.items():
        if isinstance(found, dict) and "circumstances" in found:
            yield f"{experiment}: {part}", found["circumstances"]


def _circumstances(found: dict[str, dict[str, Any]]) -> Lines:
    """Return when each experiment was taken, and on what: machines and versions once."""
    lines = table(
        ["experiment", "taken (UTC)", "commit", "processors kept busy by others"],
        (
            [name, about["at"][:16].replace("T", " "), f"`{about['commit']}`", f"{about['others_busy']:.1f}"]
            for name, about in found.items()
        ),
    )
    machines = dict.fromkeys(_machine(about["machine"]) for about in found.values())
    versions = dict.fromkeys(", ".join(map(" ".join, about["versions"].items())) for about in found.values())
    return [*lines, *(line for told in (*machines, *versions) for line in prose(f"{told}."))]


def _machine(about: dict[str, Any]) -> str:
    return (
        f"{about['processor']}, {about['cpus']} processors, {about['memory_bytes'] / (1 << 30):.0f} GiB of memory, "
        f"{about['system'].partition('-')[0]}, no GPU used"
    )


if __name__ == "__main__":
    write_report(RESULTS, DOCUMENT)
