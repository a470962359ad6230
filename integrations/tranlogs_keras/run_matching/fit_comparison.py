"""Comparison of a fit with the one that a run holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tranlogs.base.errors import UsageError

from ..data import other_data
from ..state.architecture import compare_values

_SHOWN_MAX = 20
_NAMES = {"model": "the model", "layers": "the layers", "compile": "model.compile", "trial": "the trial"}


def compare_identities(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what differs between two descriptions of fits, one sentence each, with the old and the new value."""
    found: list[str] = []
    for key, name in _NAMES.items():
        if key == "trial" or (recorded[key] is not None and now[key] is not None):
            compare_values(name, recorded[key], now[key], found)
    for which in {**recorded["optimizers"], **now["optimizers"]}:
        was, is_ = (identity["optimizers"].get(which) for identity in (recorded, now))
        if was is None or is_ is None or was["class"] != is_["class"]:
            before, after = ("not there" if about is None else about["class"] for about in (was, is_))
            found.append(f"model.{which} was {before}, now it is {after}")
        elif was["config"] is not None and is_["config"] is not None:
            compare_values(f"model.{which}", was["config"], is_["config"], found)
    found += other_data(recorded["data"], now["data"])
    return list(dict.fromkeys(found))


def check_identity(run: Path, differences: list[str]) -> None:
    """Refuse a fit that differs from the one that the run holds.

    Raises:
        UsageError: there are differences; the message names them.
    """
    if not differences:
        return
    shown = "".join(f"\n  - {text}" for text in differences[:_SHOWN_MAX])
    more = f"\n  ... and {len(differences) - _SHOWN_MAX} more" if len(differences) > _SHOWN_MAX else ""
    raise UsageError(
        f"{run}: the run holds another training than this one; nothing was trained or changed:{shown}{more}\n"
        "Give a new training a folder of its own. If the change is deliberate and the run is to continue with it, pass "
        "TranLogsCallback(..., accept_changes=True)"
    )


def digest_identity(identity: dict[str, Any]) -> str:
    """Return a short digest that is equal for equal descriptions, in every process."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]


def changed_rates(recorded: dict[str, Any], now: dict[str, Any]) -> dict[str, float]:
    """Return the learning rates of optimizers that are numbers and have been changed, by optimizer."""
    rates = [{which: _rate(about) for which, about in identity["optimizers"].items()} for identity in (recorded, now)]
    was, is_ = rates
    return {which: rate for which, rate in is_.items() if rate is not None and was.get(which) not in (None, rate)}


def _rate(about: dict[str, Any]) -> float | None:
    config = about["config"] or {}
    inner = config.get("inner_optimizer")  # of a LossScaleOptimizer
    rate = (inner["config"] if inner else config).get("learning_rate")
    return rate if isinstance(rate, float) else None
