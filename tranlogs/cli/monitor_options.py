"""Options of `tranlogs monitor`, by subject. Each group returns the settings that its options stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.errors import UsageError
from ..base.quantities import parse_bytes, parse_seconds
from ..retention.pruning_plan import Budget
from ..retention.value_decay import Decay
from ..shipping import ShippingSettings
from .options import StoreCheckpoints, TakeOver, parse_store_checkpoints


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """Options that limit the log and the checkpoints of each rank."""

    budget: Annotated[
        str | None, typer.Option(help="Bytes on disk for each rank, like 20GiB; above it, old log is pruned.")
    ] = None
    high: Annotated[float, typer.Option(help="Start to prune above this share of the budget.")] = 0.95
    low: Annotated[float, typer.Option(help="Stop to prune below this share of the budget.")] = 0.8
    max_age: Annotated[str | None, typer.Option(help="Prune segments and checkpoints older than this, like 7d.")] = None
    max_segments: Annotated[int | None, typer.Option(help="Keep at most this number of sealed segments.")] = None
    max_checkpoints: Annotated[int | None, typer.Option(help="Keep at most this number of checkpoints.")] = None

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

    life: Annotated[str | None, typer.Option(help="Expected life of a log, t_e (default: the checkpoint interval).")] = None
    alpha_covered: Annotated[float, typer.Option(help="Value that a segment loses when a checkpoint covers it.")] = 0.5
    alpha_newer: Annotated[float, typer.Option(help="Value that a segment loses with each newer segment.")] = 0.01
    alpha_archived: Annotated[float, typer.Option(help="Value that a segment loses when a store holds it.")] = 0.2
    alpha_persisted: Annotated[float, typer.Option(help="Value that a segment loses when it is durable in the store.")] = 0.1

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

    http: Annotated[
        str | None, typer.Option(help="Serve a page and /metrics at this address, like :9464 (this machine only).")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token for --http (default: TRANLOGS_HTTP_TOKEN).")
    ] = None
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Serve --http without a token, on any address.")] = False

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
        typer.Option(metavar="URL", help="Ship sealed segments and checkpoints to this store, below the run's name."),
    ] = None
    max_lag: Annotated[str | None, typer.Option(help="Seal segments of this age, so that the store is not further behind.")] = (
        None
    )
    bandwidth: Annotated[str | None, typer.Option(help="Bytes per second to the store, like 50MiB.")] = None
    uploads: Annotated[int, typer.Option(min=1, help="Number of parts to send at once.")] = 2
    store_checkpoints: StoreCheckpoints = "2"
    take_over: TakeOver = False

    def to_store_settings(self) -> dict[str, Any] | None:
        """Return the arguments of the monitor's `StoreSettings`; None if there is no store.

        Raises:
            UsageError: an option is wrong, or requires --store.
        """
        if self.store is None:
            if self.max_lag is not None or self.bandwidth is not None or self.take_over:
                raise UsageError("--max-lag, --bandwidth and --take-over require --store URL")
            return None
        lag = None if self.max_lag is None else parse_seconds(self.max_lag, "--max-lag")
        return {
            "url": self.store,
            "shipping": ShippingSettings(lag, keep=parse_store_checkpoints(self.store_checkpoints), takes_over=self.take_over),
            "bytes_per_second": None if self.bandwidth is None else parse_bytes(self.bandwidth, "--bandwidth"),
            "senders": self.uploads,
        }


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """Options of the daemon: when it evaluates journals, when it ends, and how it logs."""

    interval: Annotated[str, typer.Option(help="Time between two evaluations.")] = "10s"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show once what would be pruned, and why.")] = False
    once: Annotated[bool, typer.Option("--once", help="Evaluate once, then exit.")] = False
    until_closed: Annotated[
        bool, typer.Option("--until-closed", help="Exit once no trainer is running and nothing is left to do.")
    ] = False
    wait: Annotated[bool, typer.Option("--wait", help="Take over runs from another monitor when that one exits.")] = False
    log_json: Annotated[bool, typer.Option("--log-json", help="Write log lines as JSON.")] = False
