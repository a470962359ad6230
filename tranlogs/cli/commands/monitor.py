"""`tranlogs monitor`: the daemon that values and prunes the log of runs, and ships it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...base.errors import UsageError
from ...base.quantities import parse_seconds
from ...frameworks import load_daemon
from ..monitor_options import BudgetOptions, DaemonOptions, DecayOptions, HttpOptions, ShippingOptions
from ..option_groups import expand_option_groups
from ..options import Json, command
from ..output import screen
from ..output.json_values import print_json
from ..reading.find_journals import find_journals


@command
@expand_option_groups
def monitor(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", show_default=False, help="Runs, or folders that contain runs.")
    ],
    limits: BudgetOptions,
    decay: DecayOptions,
    web: HttpOptions,
    shipping: ShippingOptions,
    daemon: DaemonOptions,
    as_json: Json = False,
) -> int:
    """Watch runs, and keep their logs within a budget.

    What recovery to the newest step needs is never pruned. Runs until Ctrl-C or SIGTERM.
    """
    web.check()
    if daemon.once and shipping.store is not None:
        raise UsageError("--once does not ship: use `tranlogs push RUN URL` to ship a run once")
    monitor_command = load_daemon("monitor")
    settings = monitor_command.settings(
        limits.to_budget(),
        decay.to_decay(),
        parse_seconds(daemon.interval, "--interval"),
        daemon.dry_run,
        daemon.wait,
        shipping.to_store_settings(),
        daemon.until_closed,
    )
    once = daemon.once or daemon.dry_run
    has_page = web.http is not None and not once
    return monitor_command.watch(
        runs,
        settings,
        find_journals=find_journals,
        is_json=daemon.log_json,
        once=once,
        http=monitor_command.http_settings(web.http, web.token_file, not web.no_auth) if has_page else None,
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
