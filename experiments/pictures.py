"""Pictures of results, drawn from what stands in their JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.adapters import PEERS
from peer.cost import ways_of

from tranlogs.base.config import MIB
from tranlogs.retention.prune import Budget

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, RED = "#1f2937", "#dc2626"
SHADES = ("#dbeafe", "#93c5fd", "#3b82f6", "#1e3a8a")
TALK = {"gradients": 0.6899, "weights": 0.9311}  # shares of an update's time that the talk of 2024 says are saved
_COLOURS = ("#dc2626", "#93c5fd", "#3b82f6", "#1e3a8a", "#0d9488", "#65a30d", "#d97706", "#9333ea", "#6b7280")
_MEAN_TIMES = [60 * 1.25**i for i in range(40)]  # seconds between failures, from a minute to days


def draw_recovered_quality(path: Path, results: dict[str, Any]) -> None:
    """Loss and accuracy after recovery, over the step of the crash."""
    models = results["models"]
    title = "Right after SIGKILL and recovery, on data held back"
    figure, axes = new_figure(title, (max(3.1 * len(models), 5), 5.4), (2, len(models)), sharex="col", squeeze=False)
    for column, (name, found) in enumerate(models.items()):
        for row, what in enumerate(("loss", "accuracy")):
            _draw_quality(axes[row][column], found, what)
        axes[1][column].xaxis.get_major_locator().set_params(integer=True)
        axes[0][column].set_title(name, fontsize=10, color=INK)
        axes[1][column].set_xlabel("step of the crash", color=INK)
        axes[1][column].yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    axes[0][0].set_ylabel("loss (nats)", color=INK)
    axes[1][0].set_ylabel("accuracy", color=INK)
    axes[0][0].legend(frameon=False, fontsize=8, loc="upper right")
    figure.savefig(path)


def _draw_quality(axes: Axes, found: dict[str, Any], what: str) -> None:
    curve, points = found["curve"], found["points"]
    axes.plot(
        [seen["step"] for seen in curve],
        [seen[what] for seen in curve],
        color=SHADES[1],
        lw=5,
        solid_capstyle="round",
        label="never killed",
    )
    steps = [point["step"] for point in points]
    ours, theirs = ([point[way][what] for point in points] for way in ("tranlogs", "checkpoint"))
    axes.vlines(steps, ours, theirs, color=RED, lw=0.8)
    axes.plot(steps, theirs, "x", color=RED, ms=5, label="checkpoint")
    axes.plot(steps, ours, "o", color=INK, ms=4, label="TranLogs")


def draw_reduced(path: Path, results: dict[str, Any]) -> None:
    """Loss on data held back, each seed a line."""
    models = results["models"]
    figure, axes = new_figure("Rounded gradients, each seed a line", (4.5 * len(models), 3.6), (1, len(models)), squeeze=False)
    for column, (name, found) in enumerate(models.items()):
        for (log, curves), colour in zip(found["curves"].items(), (INK, _COLOURS[2], RED), strict=True):
            for i, curve in enumerate(curves):
                axes[0][column].plot(found["steps"], curve, color=colour, lw=1.2, label=None if i else log)
        axes[0][column].set_title(name, fontsize=10, color=INK)
        axes[0][column].set_xlabel("step", color=INK)
        axes[0][column].set_yscale("log")
    axes[0][0].set_ylabel("loss on data held back", color=INK)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(path)


def draw_storage(path: Path, results: dict[str, Any]) -> None:
    """Bytes on disk under each budget, between its watermarks; below, values of segments under the middle one."""
    title = "One training under three budgets: what lies on disk, and what segments are worth"
    figure, (space, values) = new_figure(title, (9, 6.4), (2, 1), sharex=True, height_ratios=(3, 2))
    shares, courses = Budget(), {name: found for name, found in results["storage"].items() if name != "circumstances"}
    for (name, course), shade in zip(courses.items(), SHADES[1:], strict=True):
        budget, end = int(name.partition(" ")[0]), course["seconds"][-1]
        space.plot(course["seconds"], [n / MIB for n in course["bytes"]], color=shade, lw=1.6)
        space.axhspan(shares.low * budget, shares.high * budget, color=shade, alpha=0.1, lw=0)
        for share, word in ((shares.high, "high"), (shares.low, "low")):
            space.axhline(share * budget, color=shade, lw=0.8, ls=(0, (4, 3)))
            space.text(end, share * budget, f" {word}", color=shade, fontsize=8, va="center")
        middle = budget * (shares.high + shares.low) / 2
        space.text(end * 1.04, middle, name, color=shade, fontsize=9, va="center")
        space.set_xlim(0, end * 1.1)
    space.set_ylim(bottom=0)
    space.set_ylabel("MiB of segments and checkpoints", color=INK)
    name, course = list(courses.items())[1]
    for curve in course["values"]:
        values.plot(curve["seconds"], curve["values"], color=INK, lw=1.2)
        values.plot(curve["seconds"][-1], curve["values"][-1], color=INK, marker="x", ms=5)
    values.set_ylim(0, 1.02)
    values.set_ylabel("value", color=INK)
    values.set_xlabel(f"seconds; below, some segments under {name} until they are pruned (x)", color=INK)
    figure.savefig(path)


def new_figure(title: str, size: tuple[float, float], shape: tuple[int, int], **options: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # without pyplot: no screen, no global state

    figure = Figure(figsize=size, dpi=140, layout="constrained")
    axes = figure.subplots(*shape, **options)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(colors=INK, labelsize=9)
    return figure, axes


def draw_policies(path: Path, results: dict[str, Any]) -> None:
    """Waste over the number of machines: a panel for each law of failures and each way to redo work."""
    title = "Share of time that failures and checkpoints cost, by policy"
    figure, axes = new_figure(title, (11, 7.4), (2, 2), sharex=True)
    for axis, (name, found) in zip(axes.flat, results["wasted"].items(), strict=True):
        for colour, (policy, shares) in zip(_COLOURS, found.items(), strict=False):
            is_ours = "auto" in policy
            axis.plot(results["nodes"], shares, color=INK if is_ours else colour, lw=2.6 if is_ours else 1.2, label=policy)
        axis.set(xscale="log", yscale="log")
        axis.set_title(name, fontsize=10, color=INK)
        axis.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g} %")
    for axis in axes[1]:
        axis.set_xlabel("machines", color=INK)
    axes[0][0].legend(frameon=False, fontsize=7.5)
    figure.savefig(path)


def draw_peers(path: Path, results: dict[str, Any]) -> None:
    """Left mean step times by interval, right the share of time that is lost."""
    figure, (costs, waste) = new_figure("Saving, crashing, coming back: the same job, the same machine", (12, 5), (1, 2))
    peers = [peer for name, peer in results["peers"].items() if name in PEERS and "cost" in peer]
    assert len(peers) <= len(_COLOURS), "each system has a colour of its own"
    for colour, peer in zip(_COLOURS, peers, strict=False):
        _draw_costs(costs, peer, colour)
        _draw_waste(waste, peer, colour)
    costs.set_xscale("log")
    costs.set_xlabel("steps between saves", color=INK)
    costs.set_ylabel("mean step time over no saving", color=INK)
    costs.axhline(1, color=INK, lw=0.6)
    costs.legend(frameon=False, fontsize=8)
    waste.set(xscale="log", yscale="log")
    waste.set_xlabel("failures a day", color=INK)
    waste.set_ylabel("share of time lost, best interval", color=INK)
    figure.savefig(path)


def _draw_costs(axes: Axes, peer: dict[str, Any], colour: str) -> None:
    found = {int(every): one["mean"] for every, one in peer["cost"].items()}
    if peer["logs_steps"]:
        found = dict.fromkeys((1, 10, 100), next(iter(found.values())))
    axes.plot(
        list(found), list(found.values()), "o-", color=colour, ms=4, lw=2.4 if peer["logs_steps"] else 1.2, label=peer["title"]
    )


def _draw_waste(axes: Axes, peer: dict[str, Any], colour: str) -> None:
    if ways := ways_of(peer):
        shares = [min(way.share(mean) for way in ways) for mean in _MEAN_TIMES]
        axes.plot([86400 / mean for mean in _MEAN_TIMES], shares, color=colour, lw=2.4 if peer["logs_steps"] else 1.2)
