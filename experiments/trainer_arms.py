"""Arms that are whole fits of a trainer: the settings of each, and how a comparison of them is told."""

from __future__ import annotations

from typing import Any

from figures import Figure
from paired_timing import AGAIN, FLOOR, PLAIN

ARMS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "logged, machine": {"durability": "machine"},
    AGAIN: None,
    FLOOR: None,
    "logged, process": {"durability": "process"},
}
"""Settings of the log by arm, in the order of their turns; None for an arm without a log."""

FLOOR_BYTES = 32 << 20  # of the floor's file


def figures(case: str, compared: dict[str, Any], goal: float, beyond: float | None = None) -> list[dict[str, Any]]:
    """The median of each logged arm beside its goals, and that of the floor."""
    logged = [arm for arm, chosen in ARMS.items() if chosen is not None]
    made = [Figure.of(f"{case}, {arm}", "median", compared[arm]["median"], "", goal, beyond) for arm in logged]
    made.append(Figure.of(f"{case}, {FLOOR}", "median", compared[FLOOR]["median"], "", None, None))
    return [figure.as_dict() for figure in made]


def tell(case: str, compared: dict[str, Any]) -> None:
    """Print all arms of a case."""
    print(f"  {case}: plain {compared[PLAIN]['ms']:.2f} ms", flush=True)
    for arm, one in compared.items():
        if arm != PLAIN:
            spreads = [(key, *one[key]) for key in ("median", "mean", "p99")]
            print(
                f"    {arm:24s} " + "  ".join(f"{key} {value:.3f} [{low:.3f}-{high:.3f}]" for key, value, low, high in spreads)
            )
