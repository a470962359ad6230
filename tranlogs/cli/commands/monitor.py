"""`tranlogs monitor`: the daemon that values and prunes the log of runs, and ships it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...base.errors import UsageError
from ...base.quantities import parse_bytes, parse_seconds
from ...retention.budget import Budget
from ...retention.compaction import Compaction
from ...retention.value_decay import Decay
from ...shipping import ShippingSettings
from ..frameworks import load_daemon
from ..options import Json, Optimizers, StoreCheckpoints, TakeOver, command, parse_store_checkpoints
from ..output import screen
from ..output.json_values import print_json
from ..reading.runs import find_journals


@command
def monitor(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", show_default=False, help="Runs, or folders that contain runs.")
    ],
    budget: Annotated[
        str | None, typer.Option(help="Bytes on disk for each rank, like 20GiB; above it, old log is pruned.")
    ] = None,
    high: Annotated[float, typer.Option(help="Start to prune above this share of the budget.")] = 0.95,
    low: Annotated[float, typer.Option(help="Stop to prune below this share of the budget.")] = 0.8,
    max_age: Annotated[str | None, typer.Option(help="Prune segments and checkpoints older than this, like 7d.")] = None,
    max_segments: Annotated[int | None, typer.Option(help="Keep at most this number of sealed segments.")] = None,
    max_checkpoints: Annotated[int | None, typer.Option(help="Keep at most this number of checkpoints.")] = None,
    life: Annotated[str | None, typer.Option(help="Expected life of a log, t_e (default: the checkpoint interval).")] = None,
    alpha_covered: Annotated[float, typer.Option(help="Value that a segment loses when a checkpoint covers it.")] = 0.5,
    alpha_newer: Annotated[float, typer.Option(help="Value that a segment loses with each newer segment.")] = 0.01,
    alpha_archived: Annotated[float, typer.Option(help="Value that a segment loses when a store holds it.")] = 0.2,
    alpha_persisted: Annotated[float, typer.Option(help="Value that a segment loses when it is durable in the store.")] = 0.1,
    interval: Annotated[str, typer.Option(help="Time between two evaluations.")] = "10s",
    http: Annotated[
        str | None, typer.Option(help="Serve a page and /metrics at this address, like :9464 (this machine only).")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token for --http (default: TRANLOGS_HTTP_TOKEN).")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Serve --http without a token, on any address.")] = False,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ship sealed segments and checkpoints to this store, below the run's name."),
    ] = None,
    max_lag: Annotated[
        str | None, typer.Option(help="Seal segments of this age, so that the store is not further behind.")
    ] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Bytes per second to the store, like 50MiB.")] = None,
    uploads: Annotated[int, typer.Option(min=1, help="Number of parts to send at once.")] = 2,
    store_checkpoints: StoreCheckpoints = "2",
    take_over: TakeOver = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Make checkpoints from the log in another process, without stopping the trainer.")
    ] = False,
    compact_after: Annotated[
        str | None,
        typer.Option(help="Sealed log after the newest checkpoint that triggers --compact (default: the checkpoint's size)."),
    ] = None,
    compact_timeout: Annotated[str, typer.Option(help="Time after which making a checkpoint is abandoned.")] = "1h",
    optimizer: Optimizers = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: show once what would be pruned, and why.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Evaluate once, then exit.")] = False,
    until_closed: Annotated[
        bool, typer.Option("--until-closed", help="Exit once no trainer is running and nothing is left to do.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Take over runs from another monitor when that one exits.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write log lines as JSON.")] = False,
    as_json: Json = False,
) -> int:
    """Watch runs, and keep their logs within a budget.

    What recovery to the newest step needs is never pruned. Runs until Ctrl-C or SIGTERM.
    """
    limits = Budget(
        None if budget is None else parse_bytes(budget, "--budget"),
        high,
        low,
        None if max_age is None else parse_seconds(max_age, "--max-age"),
        max_segments,
        max_checkpoints,
    )
    decay = Decay(
        None if life is None else parse_seconds(life, "--life"), alpha_covered, alpha_newer, alpha_archived, alpha_persisted
    )
    _check_combinations(store, (max_lag, bandwidth, take_over or None), http, token_file, no_auth=no_auth, once=once)
    shipping = None
    if store is not None:
        lag = None if max_lag is None else parse_seconds(max_lag, "--max-lag")
        shipping_settings = ShippingSettings(lag, keep=parse_store_checkpoints(store_checkpoints), takes_over=take_over)
        rate = None if bandwidth is None else parse_bytes(bandwidth, "--bandwidth")
        shipping = {"url": store, "shipping": shipping_settings, "bytes_per_second": rate, "senders": uploads}
    compaction = Compaction(
        None if compact_after is None else parse_bytes(compact_after, "--compact-after"),
        parse_seconds(compact_timeout, "--compact-timeout"),
        tuple(optimizer or ()),
    )
    watch, settings, _ = load_daemon("monitor")
    chosen = settings(
        limits,
        decay,
        parse_seconds(interval, "--interval"),
        dry_run,
        wait,
        shipping,
        compaction if compact else None,
        until_closed,
    )
    code: int = watch(
        runs,
        chosen,
        find_journals=find_journals,
        is_json=log_json,
        once=once or dry_run,
        http=http,
        token_file=token_file,
        has_auth=not no_auth,
        show=_print_json if as_json else _show_table,
    )
    return code


def _check_combinations(
    store: str | None, of_store: Sequence[object], http: str | None, token_file: Path | None, *, no_auth: bool, once: bool
) -> None:
    """Check that no option lacks the one that it requires, or excludes another.

    Raises:
        UsageError: that is not so.
    """
    if store is None and any(option is not None for option in of_store):
        raise UsageError("--max-lag, --bandwidth and --take-over require --store URL")
    if http is None and (token_file is not None or no_auth):
        raise UsageError("--token-file and --no-auth require --http")
    if token_file is not None and no_auth:
        raise UsageError("--token-file and --no-auth exclude each other: give one of them")
    if once and store is not None:
        raise UsageError("--once does not ship: use `tranlogs push RUN URL` to ship a run once")


def _as_dict(paths: Any, evaluation: Any) -> dict[str, Any]:
    plan = evaluation.pruning
    return {
        "folder": paths.folder,
        "at": evaluation.at,
        "bytes": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "anchor": None if evaluation.anchor is None else evaluation.anchor.name,
        "wants_checkpoint": plan.wants_checkpoint,
        "goes": [{"name": name, "why": why} for name, why in plan.reasons.items()],
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
