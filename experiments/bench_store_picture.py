"""The figures of `bench_store.py` as a picture: stall, lag, and recovery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INK = "#1f2937"
_COLOURS = {
    "folder": "#9ca3af",
    "ASYNC_THROUGH": "#1d4ed8",
    "CACHE_THROUGH": "#059669",
    "THROUGH": "#d97706",
    "no store, again (noise)": "#d1d5db",
    "local disk": "#9ca3af",
    "Alluxio memory": "#1d4ed8",
    "under-store": "#d97706",
}


def draw(path: Path, results: Mapping[str, Any]) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure  # without pyplot: no screen, no global state

    figure = Figure(figsize=(10, 7), dpi=160, layout="constrained")
    (archived, persisted), (stall, recovery) = figure.subplots(2, 2)
    for axes, column, word in ((archived, 1, "archived"), (persisted, 2, "persisted")):
        for name, one in results["lag"].items():
            at = [point[0] for point in one["curve"]]
            axes.plot(at, [point[column] for point in one["curve"]], color=_COLOURS[name], lw=1.2, label=name)
        axes.set_title(f"steps committed, not {word}", loc="left", fontsize=10, color=_INK)
        axes.set_xlabel("seconds of training a GPT", color=_INK)
        axes.set_ylim(bottom=0)
    archived.legend(frameon=False, fontsize=8)
    training = results["training"]
    _dots(
        stall,
        {
            structure: {name: found["ratio"] for name, found in one["stores"].items() if name in _COLOURS}
            for structure, one in training.items()
        },
        "step time over that without a store",
    )
    stall.axhline(1, color=_INK, lw=0.6)
    _dots(
        recovery,
        {structure: {name: found["seconds"] for name, found in one["recovery"].items()} for structure, one in training.items()},
        "seconds of recovery",
    )
    recovery.set_ylim(bottom=0)
    for axes in (archived, persisted, stall, recovery):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
    figure.savefig(path)


def _dots(axes: Any, values: Mapping[str, Mapping[str, Mapping[str, float]]], title: str) -> None:
    """Median and quartiles, by structure and name."""
    for i, named in enumerate(values.values()):
        for j, (name, one) in enumerate(named.items()):
            x = i + (j - (len(named) - 1) / 2) * 0.14
            axes.plot([x, x], [one["q25"], one["q75"]], color=_COLOURS[name], lw=2.4)
            axes.plot(x, one["median"], "o", color=_COLOURS[name], ms=4, label=name if i == 0 else None)
    axes.set_xticks(range(len(values)), list(values))
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.legend(frameon=False, fontsize=8)
