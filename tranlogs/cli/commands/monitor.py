"""`tranlogs monitor`: the daemon that values, prunes and watches runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...base.errors import UsageError
from ...base.quantities import parse_bytes, parse_seconds
from ...retention.budget import Budget
from ...retention.compaction import Compaction
from ...retention.value_decay import Decay
from ...shipping import Limits
from ..frameworks import daemon_of
from ..options import Json, Optimizers, StoreCheckpoints, TakeOver, command, parse_store_checkpoints
from ..output import screen
from ..output.json_values import print_json
from ..reading.runs import journals_of


@command
def monitor(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", show_default=False, help="Runs, or folders of runs.")],
    budget: Annotated[
        str | None, typer.Option(help="Bytes on disk for each rank, like 20GiB; older log goes above it.")
    ] = None,
    high: Annotated[float, typer.Option(help="Pruning begins above this share of the budget.")] = 0.95,
    low: Annotated[float, typer.Option(help="And ends below this one.")] = 0.8,
    max_age: Annotated[str | None, typer.Option(help="Segments and checkpoints older than this go, like 7d.")] = None,
    max_segments: Annotated[int | None, typer.Option(help="So many sealed segments stay at most.")] = None,
    max_checkpoints: Annotated[int | None, typer.Option(help="So many checkpoints stay at most.")] = None,
    life: Annotated[str | None, typer.Option(help="Expected life of a log, t_e; default: the checkpoint interval.")] = None,
    alpha_covered: Annotated[float, typer.Option(help="What a newer checkpoint takes from a segment's value.")] = 0.5,
    alpha_newer: Annotated[float, typer.Option(help="What each newer segment takes.")] = 0.01,
    alpha_archived: Annotated[float, typer.Option(help="What it takes that a store has the segment.")] = 0.2,
    alpha_persisted: Annotated[float, typer.Option(help="And that it is durable there.")] = 0.1,
    interval: Annotated[str, typer.Option(help="Between two evaluations.")] = "10s",
    http: Annotated[str | None, typer.Option(help="Serve a page and /metrics there, like :9464 (this machine only).")] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token that --http asks for; else TRANLOGS_HTTP_TOKEN.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Serve --http without a token on any address.")] = False,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Ship sealed segments and checkpoints there, below the run's name.")
    ] = None,
    max_lag: Annotated[str | None, typer.Option(help="The store is not further behind: segments are sealed by age.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Bytes a second to the store, like 50MiB.")] = None,
    uploads: Annotated[int, typer.Option(min=1, help="Parts that are sent at once.")] = 2,
    store_checkpoints: StoreCheckpoints = "2",
    take_over: TakeOver = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Make checkpoints from the log, beside the trainer, which need not stop for them.")
    ] = False,
    compact_after: Annotated[
        str | None, typer.Option(help="When so much sealed log lies behind the newest one, like 1GiB; default: its own size.")
    ] = None,
    compact_timeout: Annotated[str, typer.Option(help="Give up making one after that long.")] = "1h",
    optimizer: Optimizers = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show once what would go, and why.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Evaluate once, and end.")] = False,
    until_closed: Annotated[
        bool, typer.Option("--until-closed", help="End by itself once no trainer is there and nothing is left to do.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Take over runs that another monitor has when it ends.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
    as_json: Json = False,
) -> int:
    """Watch runs, and keep their logs within a budget.

    What recovery to the newest step needs never goes. Runs until Ctrl-C or SIGTERM.
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
    if store is None and (max_lag is not None or bandwidth is not None or take_over):
        raise UsageError("--max-lag, --bandwidth and --take-over are for shipping: give --store URL, too")
    if http is None and (token_file is not None or no_auth):
        raise UsageError("--token-file and --no-auth are for the page: give --http, too")
    if token_file is not None and no_auth:
        raise UsageError("--token-file asks for a token, and --no-auth for none: give one of them")
    if once and store is not None:
        raise UsageError("--once evaluates, and ships nothing; `tranlogs push RUN URL` ships a run once")
    shipping = None
    if store is not None:
        lag = None if max_lag is None else parse_seconds(max_lag, "--max-lag")
        limits_there = Limits(lag, keep=parse_store_checkpoints(store_checkpoints), takes_over=take_over)
        rate = None if bandwidth is None else parse_bytes(bandwidth, "--bandwidth")
        shipping = {"url": store, "limits": limits_there, "bytes_per_second": rate, "senders": uploads}
    compaction = Compaction(
        None if compact_after is None else parse_bytes(compact_after, "--compact-after"),
        parse_seconds(compact_timeout, "--compact-timeout"),
        tuple(optimizer or ()),
    )
    watch, settings, _ = daemon_of("monitor")
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
        journals_of=journals_of,
        is_json=log_json,
        once=once or dry_run,
        http=http,
        token_file=token_file,
        has_auth=not no_auth,
        show=_print_json if as_json else _show_table,
    )
    return code


def _as_dict(paths: Any, seen: Any) -> dict[str, Any]:
    plan = seen.pruning
    return {
        "folder": paths.folder,
        "at": seen.at,
        "bytes": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "anchor": None if seen.anchor is None else seen.anchor.name,
        "wants_checkpoint": plan.wants_checkpoint,
        "goes": [{"name": name, "why": why} for name, why in plan.reasons.items()],
        "segments": [
            {
                "ordinal": row.ordinal,
                "file": row.file,
                "steps": [row.base_step + 1, row.last_step],
                "bytes": row.size,
                "value": seen.worth.of(row.ordinal),
                "protected": seen.protected[row.ordinal],
            }
            for row in (seen.before or seen.rows).segments
            if row.state == "sealed"
        ],
    }


def _print_json(found: list[tuple[Any, Any]]) -> None:
    print_json({"journals": [_as_dict(paths, seen) for paths, seen in found]})


def _show_table(found: list[tuple[Any, Any]]) -> None:

    out = screen.console()
    for paths, seen in found:
        plan = seen.pruning
        anchor = "none" if seen.anchor is None else f"checkpoint of step {seen.anchor.step}"
        out.print(
            screen.facts(
                [
                    ("journal", paths.folder),
                    ("protected from", f"{anchor} on"),
                    (
                        "bytes",
                        f"{screen.size(plan.bytes_before)} now, {screen.size(plan.bytes_after)} when all that goes has gone",
                    ),
                    ("over budget", "with protected data alone: a checkpoint is wanted" if plan.wants_checkpoint else "no"),
                ]
            )
        )
        rows = []
        for row in (seen.before or seen.rows).segments:
            value = seen.worth.of(row.ordinal)
            why = plan.reasons.get(row.file, "protected" if seen.protected.get(row.ordinal, True) else "stays")
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
