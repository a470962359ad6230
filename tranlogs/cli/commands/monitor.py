"""`tranlogs monitor`: the daemon that values and prunes the log of runs, and ships it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ...base.errors import UsageError
from ...base.quantities import parse_bytes, parse_seconds
from ...frameworks import load_daemon
from ...retention.prune import Budget
from ...retention.value_decay import Decay
from ...shipping import ShippingSettings, StoreSettings
from .. import screen
from ..options import Json, command, parse_store_checkpoints
from ..parameters import Argument, Option
from ..reading.find_journals import find_journals
from ..screen import print_json

_INTERVAL = "10s"


def _parse_number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{what} {text!r}: give a number like 0.5") from None


def _parse_count(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{what} {text!r}: give a number like 5")
    return int(text)


def _parse_senders(text: str, what: str) -> int:
    if (number := _parse_count(text, what)) < 1:
        raise UsageError(f"{what} must be at least 1, got {number}")
    return number


def _parse_truth(text: str, what: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"{what} {text!r}: give true or false")
    return text == "true"


class _Setting(NamedTuple):
    """A setting that `--set` gives: its parser, which takes the text and a name for messages, and where it has no effect."""

    parse: Callable[[str, str], Any]
    ineffective: str = ""


_SETTINGS = {
    "high": _Setting(_parse_number, "without --budget"),
    "low": _Setting(_parse_number, "without --budget"),
    "max_age": _Setting(parse_seconds),
    "max_segments": _Setting(_parse_count),
    "max_checkpoints": _Setting(_parse_count),
    "life": _Setting(parse_seconds),
    "alpha_covered": _Setting(_parse_number),
    "alpha_newer": _Setting(_parse_number),
    "alpha_archived": _Setting(_parse_number),
    "alpha_persisted": _Setting(_parse_number),
    "max_lag": _Setting(parse_seconds, "without --store"),
    "bandwidth": _Setting(parse_bytes, "without --store"),
    "uploads": _Setting(_parse_senders, "without --store"),
    "store_checkpoints": _Setting(parse_store_checkpoints, "without --store"),
    "take_over": _Setting(_parse_truth, "without --store"),
    "until_closed": _Setting(_parse_truth, "with --once or --dry-run"),
    "wait": _Setting(_parse_truth, "with --once or --dry-run"),
}


def _read_settings(words: Sequence[str], ineffective: set[str]) -> dict[str, Any]:
    """Return the values of `--set NAME=VALUE`, by name.

    Args:
        words: the values of the option.
        ineffective: the cases that hold, of those in which a setting has no effect.

    Raises:
        UsageError: a setting is unknown, given twice, wrong, or has no effect.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in _SETTINGS:
            raise UsageError(f"--set {word}: expected NAME=VALUE with one of the names {', '.join(_SETTINGS)}")
        setting = _SETTINGS[name]
        if name in values:
            raise UsageError(f"--set {name} is given twice: omit one of them")
        values[name] = setting.parse(text, f"--set {name}")
        if setting.ineffective in ineffective:
            raise UsageError(f"--set {name} has no effect {setting.ineffective}")
    return values


def _pick(values: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return the values that were given, by the names of arguments; `names` has the name of the setting of each argument."""
    return {argument: values[name] for argument, name in names.items() if name in values}


def _budget(nbytes: str | None, values: dict[str, Any]) -> Budget:
    limits = {"age_seconds_max": "max_age", "segments_max": "max_segments", "checkpoints_max": "max_checkpoints"}
    size = None if nbytes is None else parse_bytes(nbytes, "--budget")
    return Budget(size, **_pick(values, high="high", low="low", **limits))


def _decay(values: dict[str, Any]) -> Decay:
    alphas = {name: f"alpha_{name}" for name in ("covered", "newer", "archived", "persisted")}
    return Decay(**_pick(values, life_seconds="life", **alphas))


def _store(url: str | None, values: dict[str, Any]) -> StoreSettings | None:
    if url is None:
        return None
    shipping = ShippingSettings(**_pick(values, lag_seconds_max="max_lag", keep="store_checkpoints", takes_over="take_over"))
    return StoreSettings(url, shipping, **_pick(values, bytes_per_second="bandwidth", senders="uploads"))


def _check_once(how: str, http: str | None, store: str | None, interval: str | None) -> None:
    """Check that no option is given that has an effect on a monitor that stays only."""
    if store is not None:
        raise UsageError(f"{how} does not ship: use `tranlogs push RUN URL` to ship a run once")
    for name, value in (("--http", http), ("--interval", interval)):
        if value is not None:
            raise UsageError(f"{name} has no effect with {how}, which evaluates once and exits: omit one of them")


@command
def monitor(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Runs, or folders that contain runs.")],
    budget: Annotated[str | None, Option(help="Bytes on disk for each rank, like 20GiB; above it, old log is pruned.")] = None,
    store: Annotated[
        str | None,
        Option(metavar="URL", help="Ship sealed segments and checkpoints to this store, below the run's name."),
    ] = None,
    http: Annotated[
        str | None, Option(help="Serve a page and /metrics at this address, like :9464 (this machine only).")
    ] = None,
    interval: Annotated[str | None, Option(help=f"Time between two evaluations (default: {_INTERVAL}).")] = None,
    once: Annotated[bool, Option("--once", help="Evaluate once, then exit.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Change nothing: show once what would be pruned, and why.")] = False,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help=f"Another setting, one of: {', '.join(_SETTINGS)}.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Watch runs, and keep their logs within a budget.

    What recovery to the newest step needs is never pruned. Runs until Ctrl-C or SIGTERM. With --json, log lines are JSON, too.
    """
    if once and dry_run:
        raise UsageError("--once has no effect with --dry-run, which evaluates once and exits: omit --once")
    stays = not (once or dry_run)
    if not stays:
        _check_once("--once" if once else "--dry-run", http, store, interval)
    cases = {"without --budget": budget is None, "without --store": store is None, "with --once or --dry-run": not stays}
    values = _read_settings(settings or [], {case for case, holds in cases.items() if holds})
    monitor_command = load_daemon("monitor")
    return monitor_command.watch(
        runs,
        monitor_command.settings(
            _budget(budget, values),
            _decay(values),
            parse_seconds(interval or _INTERVAL, "--interval"),
            dry_run,
            values.get("wait", False),
            _store(store, values),
            values.get("until_closed", False),
        ),
        find_journals=find_journals,
        is_json=as_json,
        once=not stays,
        http=http,
        show=_print_json if as_json else _show_table,
    )


def _as_dict(paths: Any, evaluation: Any) -> dict[str, Any]:
    plan = evaluation.pruning
    return {
        "folder": paths.folder,
        "at": evaluation.at,
        "bytes": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "anchor": None if evaluation.anchor is None else evaluation.anchor.name,
        "wants_checkpoint": plan.wants_checkpoint,
        "pruned": [{"name": name, "why": why} for name, why in plan.reasons.items()],
        "segments": [
            {
                "ordinal": row.ordinal,
                "file": row.file,
                "steps": [row.base_step + 1, row.last_step],
                "bytes": row.size,
                "value": evaluation.worth.get(row.ordinal),
                "protected": evaluation.protected[row.ordinal],
            }
            for row in (evaluation.before or evaluation.rows).segments
            if row.state == "sealed"
        ],
    }


def _print_json(found: list[tuple[Any, Any]]) -> None:
    print_json({"journals": [_as_dict(paths, evaluation) for paths, evaluation in found]})


def _show_table(found: list[tuple[Any, Any]]) -> None:
    out = screen.console()
    for paths, evaluation in found:
        plan = evaluation.pruning
        anchor = "none" if evaluation.anchor is None else f"checkpoint of step {evaluation.anchor.step}"
        out.print(
            screen.facts(
                [
                    ("journal", paths.folder),
                    ("protected from", f"{anchor} on"),
                    (
                        "bytes",
                        f"{screen.size(plan.bytes_before)} now, {screen.size(plan.bytes_after)} after pruning",
                    ),
                    ("over budget", "with protected data alone: a checkpoint is needed" if plan.wants_checkpoint else "no"),
                ]
            )
        )
        rows = []
        for row in (evaluation.before or evaluation.rows).segments:
            value = evaluation.worth.get(row.ordinal)
            why = plan.reasons.get(row.file, "protected" if evaluation.protected.get(row.ordinal, True) else "stays")
            if row.state == "sealed":
                rows.append(
                    (
                        row.ordinal,
                        f"{row.base_step + 1} to {row.last_step}",
                        screen.size(row.size),
                        "-" if value is None else f"{value:.3f}",
                        why,
                    )
                )
        rows += [("checkpoint", row.step, screen.size(row.nbytes), "-", plan.reasons[row.name]) for row in plan.checkpoints]
        out.print(screen.table("segments", ("segment", "steps", "file", "value", "what"), rows, numbers=("file", "value")))
