"""`tranlogs monitor`: the daemon that values and prunes the log of runs, and ships it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ...base.errors import UsageError
from ...base.quantities import parse_bytes, parse_seconds
from ...frameworks import load_daemon
from ...retention.prune import Budget
from ...retention.value_decay import Decay
from ...shipping import ShippingSettings, StoreSettings
from .. import screen
from ..options import Json, StoreCheckpoints, TakeOver, command, parse_store_checkpoints
from ..parameters import Argument, Option
from ..reading.find_journals import find_journals
from ..screen import print_json


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """Options that limit the log and the checkpoints of each rank."""

    budget: Annotated[str | None, Option(help="Bytes on disk for each rank, like 20GiB; above it, old log is pruned.")] = None
    high: Annotated[float, Option(help="Start to prune above this share of the budget.")] = 0.95
    low: Annotated[float, Option(help="Stop to prune below this share of the budget.")] = 0.8
    max_age: Annotated[str | None, Option(help="Prune segments and checkpoints older than this, like 7d.")] = None
    max_segments: Annotated[int | None, Option(help="Keep at most this number of sealed segments.")] = None
    max_checkpoints: Annotated[int | None, Option(help="Keep at most this number of checkpoints.")] = None

    def to_budget(self) -> Budget:
        """Return the limits.

        Raises:
            UsageError: an option is wrong.
        """
        return Budget(
            None if self.budget is None else parse_bytes(self.budget, "--budget"),
            self.high,
            self.low,
            None if self.max_age is None else parse_seconds(self.max_age, "--max-age"),
            self.max_segments,
            self.max_checkpoints,
        )


@dataclass(frozen=True, slots=True)
class DecayOptions:
    """Options that set how the values of segments decay."""

    life: Annotated[str | None, Option(help="Expected life of a log, t_e (default: the checkpoint interval).")] = None
    alpha_covered: Annotated[float, Option(help="Value that a segment loses when a checkpoint covers it.")] = 0.5
    alpha_newer: Annotated[float, Option(help="Value that a segment loses with each newer segment.")] = 0.01
    alpha_archived: Annotated[float, Option(help="Value that a segment loses when a store holds it.")] = 0.2
    alpha_persisted: Annotated[float, Option(help="Value that a segment loses when it is durable in the store.")] = 0.1

    def to_decay(self) -> Decay:
        """Return the settings of the decay.

        Raises:
            UsageError: an option is wrong.
        """
        life = None if self.life is None else parse_seconds(self.life, "--life")
        return Decay(life, self.alpha_covered, self.alpha_newer, self.alpha_archived, self.alpha_persisted)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of the dashboard."""

    http: Annotated[str | None, Option(help="Serve a page and /metrics at this address, like :9464 (this machine only).")] = (
        None
    )
    token_file: Annotated[
        Path | None, Option(metavar="FILE", help="File with the token for --http (default: TRANLOGS_HTTP_TOKEN).")
    ] = None
    no_auth: Annotated[bool, Option("--no-auth", help="Serve --http without a token, on any address.")] = False

    def check(self) -> None:
        """Check that no option requires another one that is missing, or excludes one that is given.

        Raises:
            UsageError: an option does.
        """
        if self.http is None and (self.token_file is not None or self.no_auth):
            raise UsageError("--token-file and --no-auth require --http")
        if self.token_file is not None and self.no_auth:
            raise UsageError("--token-file and --no-auth exclude each other: use one of them")


@dataclass(frozen=True, slots=True)
class ShippingOptions:
    """Options of the store to which runs are shipped."""

    store: Annotated[
        str | None,
        Option(metavar="URL", help="Ship sealed segments and checkpoints to this store, below the run's name."),
    ] = None
    max_lag: Annotated[str | None, Option(help="Seal segments of this age, so that the store is not further behind.")] = None
    bandwidth: Annotated[str | None, Option(help="Bytes per second to the store, like 50MiB.")] = None
    uploads: Annotated[int, Option(min=1, help="Number of parts to send at once.")] = 2
    store_checkpoints: StoreCheckpoints = "2"
    take_over: TakeOver = False

    def to_store_settings(self) -> StoreSettings | None:
        """Return the settings of the store; None if there is no store.

        Raises:
            UsageError: an option is wrong, or requires --store.
        """
        if self.store is None:
            if self.max_lag is not None or self.bandwidth is not None or self.take_over:
                raise UsageError("--max-lag, --bandwidth and --take-over require --store URL")
            return None
        lag = None if self.max_lag is None else parse_seconds(self.max_lag, "--max-lag")
        shipping = ShippingSettings(lag, keep=parse_store_checkpoints(self.store_checkpoints), takes_over=self.take_over)
        bandwidth = None if self.bandwidth is None else parse_bytes(self.bandwidth, "--bandwidth")
        return StoreSettings(self.store, shipping, bandwidth, self.uploads)


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """Options of the daemon: when it evaluates journals, when it ends, and how it logs."""

    interval: Annotated[str, Option(help="Time between two evaluations.")] = "10s"
    dry_run: Annotated[bool, Option("--dry-run", help="Change nothing: show once what would be pruned, and why.")] = False
    once: Annotated[bool, Option("--once", help="Evaluate once, then exit.")] = False
    until_closed: Annotated[
        bool, Option("--until-closed", help="Exit once no trainer is running and nothing is left to do.")
    ] = False
    wait: Annotated[bool, Option("--wait", help="Take over runs from another monitor when that one exits.")] = False
    log_json: Annotated[bool, Option("--log-json", help="Write log lines as JSON.")] = False


@command
def monitor(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Runs, or folders that contain runs.")],
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
