"""A measured figure, its spread, and the goal that it is held against."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. Smaller is better for all of them.

    Attributes:
        case: what was measured, as a row of a table names it.
        what: the quantity: "median", "p99 over plain p99".
        value: the measurement.
        low: lower quartile.
        high: upper quartile.
        unit: "ms", "s" or, for a ratio, nothing.
        goal: the value must not exceed it; None if there is no goal.
        beyond: a stricter goal; None if there is none.
    """

    case: str
    what: str
    value: float
    low: float
    high: float
    unit: str = ""
    goal: float | None = None
    beyond: float | None = None

    @classmethod
    def of(cls, case: str, what: str, spread: tuple[float, float, float], unit: str = "", *goals: float | None) -> Figure:
        """Make a figure from (value, lower quartile, upper quartile); `goals` are the goal and the stricter one."""
        return cls(case, what, *spread, unit, *goals)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for the JSON."""
        return asdict(self)

    @property
    def shown(self) -> str:
        """The value with its quartiles and its unit."""
        texts = [f"{number:.{self._digits}f}" for number in (self.value, self.low, self.high)]
        spread = "" if self.low == self.high else f" [{texts[1]}-{texts[2]}]"
        return f"{texts[0]}{spread}{' ' * bool(self.unit)}{self.unit}"

    @property
    def _digits(self) -> int:
        if self.unit == "ms":
            return 3 if abs(self.value) < 1 else 2
        return 2 if self.unit == "s" or abs(self.value) >= 10 else 3

    def verdict(self, goal: float | None) -> str:
        """Return "met", "not met", or nothing where there is no goal.

        The measurement is compared as it is shown, so that 1.05 meets a goal of 1.05.
        """
        if goal is None:
            return ""
        return "met" if round(self.value, self._digits) <= goal else "not met"


def goal_rows(figures: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of a table: case, quantity, measurement, goal, verdict, stricter goal, verdict."""
    rows = []
    for figure in (Figure(**one) for one in figures):
        goals = [text for goal in (figure.goal, figure.beyond) for text in (_shown_goal(goal, figure), figure.verdict(goal))]
        rows.append([figure.case, figure.what, figure.shown, *goals])
    return rows


def _shown_goal(goal: float | None, figure: Figure) -> str:
    return "" if goal is None else f"{goal:g}{' ' * bool(figure.unit)}{figure.unit}"
