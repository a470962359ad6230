"""The picture of the demo: the loss curves of both runs, and their difference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = dict[int, float]  # step -> value

_INK, _RED, _PALE, _WIDE = "#1f2937", "#dc2626", "#fee2e2", "#93c5fd"


@dataclass(frozen=True, slots=True)
class Marks:
    """Events of the killed run that the picture marks.

    Attributes:
        checkpoint: step of the checkpoint that recovery started from.
        recovered: step that it came to.
        killed: batch in which the process died.
        phase: where in it, in words.
    """

    checkpoint: int
    recovered: int
    killed: int
    phase: str


def draw(path: Path, title: str, reference: Curve, logged: Curve, marks: Marks) -> None:
    """Write the PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # without pyplot: no screen, no global state

    figure = Figure(figsize=(9, 5.2), dpi=160, layout="constrained")
    curves, difference = figure.subplots(2, sharex=True, height_ratios=(5, 1))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=_INK)
    for axes in (curves, difference):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.margins(x=0.01)
        axes.axvspan(marks.checkpoint, marks.recovered, color=_PALE, lw=0)
        axes.axvline(marks.killed, color=_RED, lw=1.2, ls=(0, (4, 3)))
    curves.plot(*_points(reference), color=_WIDE, lw=6, solid_capstyle="round", label="never killed, plain torch")
    curves.plot(*_points(logged), color=_INK, lw=1.4, label="killed and recovered, TranLogs")
    curves.set_ylabel("loss (nats a character)", color=_INK)
    curves.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.1), fontsize=9)
    _annotate(curves, marks)
    _plot_difference(difference, reference, logged)
    figure.savefig(path)


def _points(curve: Curve) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _plot_difference(axes: Axes, reference: Curve, logged: Curve) -> None:
    steps = [step for step in reference if step in logged]
    values = [logged[step] - reference[step] for step in steps]
    largest = max(map(abs, values), default=0.0)
    axes.plot(steps, values, color=_INK, lw=1.4)
    axes.set_ylim(-2 * largest or -1, 2 * largest or 1)
    axes.set_yticks([0])
    axes.set_ylabel("difference", color=_INK)
    axes.set_xlabel(f"batch (largest difference between the two losses: {largest:g})", color=_INK)


def _annotate(axes: Axes, marks: Marks) -> None:
    across = axes.get_xaxis_transform()  # x in batches, y in shares of the height
    is_late = marks.killed > sum(axes.get_xlim()) / 2  # the text goes where there is room
    axes.text(
        marks.killed,
        0.98,
        f"  SIGKILL in batch {marks.killed},  \n  {marks.phase}  ",
        transform=across,
        color=_RED,
        ha="right" if is_late else "left",
        va="top",
        fontsize=9,
    )
    steps = marks.recovered - marks.checkpoint
    if steps:
        axes.text(marks.checkpoint, 0.02, f" {steps} steps\n replayed", transform=across, color=_RED, va="bottom", fontsize=9)
