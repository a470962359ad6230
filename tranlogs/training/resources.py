"""Resources that a run keeps open while it trains: its journal, a monitor, shipping to a store, and the signal handler.

The environment in which a run was recorded is compared here with the present one: library versions, flags, devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.config import SEGMENT_BYTES_MIN, JournalConfig
from ..base.errors import UsageError
from ..base.notes import Note
from ..base.quantities import format_bytes
from ..encoding.tree import Adapt
from ..journal import JournalPaths
from ..journal.journal import Journal
from ..journal.monitor_launch import shipping_store, start_monitor
from ..journal.shutdown import ShutdownHandler
from ..recovery.group.journals import read_run_id
from ..recovery.recover import Recovered
from ..recovery.report import progress_bar
from ..shipping import InProcessShipper, StoreCopies, fetch_missing_journal
from .rehearsed_process import open_journal
from .settings import RunSettings

_FILES_OF_A_BUDGET = 3  # the open log file, the next one, and one that is sealed


class RunResources:
    """The journal that this process writes, and the services beside it.

    A journal that is missing here and is in the store is fetched first. Rank 0 also fetches the journals of ranks beyond the
    current number of processes, because they hold gradient shards that recovery needs.

    Args:
        settings: settings of the run.
        framework: name of the framework, as in the entry points `tranlogs.frameworks`.
        environment: what rounding depends on; a new dict if None. The caller fills it before anything is written.
        adapt: encodes the framework's own objects.
        rank: rank of this process.
        world: number of processes that train together.
        writer: the writer to use if the settings name none.
        segment_bytes: size of a log file if the settings name none; None for the default.

    Raises:
        RunInUse: another process writes the journal.
        UsageError: a setting or the folder is wrong.
        StoreUnavailable: the journal is missing here, and the store does not answer.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        framework: str,
        environment: dict[str, Any] | None = None,
        adapt: Adapt,
        rank: int = 0,
        world: int = 1,
        writer: str = "direct",
        segment_bytes: int | None = None,
    ) -> None:
        chosen: dict[str, Any] = {"durability": settings.durability, "writer": settings.writer or writer}
        if settings.segment_bytes:
            chosen["segment_bytes"] = settings.segment_bytes
        elif segment_bytes:
            chosen |= {"segment_bytes": segment_bytes, "segment_bytes_first": SEGMENT_BYTES_MIN}
        self.config = JournalConfig(**chosen)
        _check_budget(settings, self.config.segment_bytes)
        url, is_own = shipping_store(settings.monitor, settings.store)
        with progress_bar() as progress:
            was_fetched = fetch_missing_journal(url, JournalPaths.of(settings.run, rank), progress) is not None
            former = world
            while rank == 0 and was_fetched:
                was_fetched = fetch_missing_journal(url, JournalPaths.of(settings.run, former), progress) is not None
                former += 1
        self.environment = {} if environment is None else environment
        opening = {
            "framework": framework,
            "environment": self.environment,
            "config": self.config,
            "policy": settings.policy,
            "retention": settings.retention,
        }
        self.journal = open_journal(settings.run, rank, opening)
        self.journal.adapt = adapt
        if settings.monitor is not None and settings.monitor.budget_bytes is not None:
            self.journal.checkpoints.schedule.budget_bytes = settings.monitor.budget_bytes
        start_monitor(settings.monitor, self.journal.paths)
        self._shipping = InProcessShipper(url if is_own else None, self.journal.paths)
        self.spare = StoreCopies(self.journal.paths, url)
        self._shutdown = ShutdownHandler(self.journal, self._shipping.wait, settings.on_signal, settings.grace_seconds)

    def continue_from(self, found: Recovered, *, new_timeline: bool | None = None, number: int | None = None) -> None:
        """Continue the journal from where a recovery ended, and note how long the recovery took.

        Args:
            found: the recovery.
            new_timeline: True to start a new timeline; None to start one if the log has later steps.
            number: number of the timeline that all ranks continue on; None for the journal's own.
        """
        journal = self.journal
        journal.continue_from(
            found.end,
            new_timeline=found.plan.has_later if new_timeline is None else new_timeline,
            number=number,
            damaged=found.damaged,
            checkpoint=found.plan.checkpoint,
            log_bytes=found.log_bytes,
        )
        if found.replayed:
            journal.recovery_speed.observe_replay(found.seconds_replay / found.replayed)
        journal.recovery_speed.observe_load(found.seconds_load)

    def close(self, seconds: float | None = None) -> None:
        """Close the journal, and wait until the store holds it.

        Args:
            seconds: how long to wait at most; None to wait as long as shipping proceeds.
        """
        self.journal.close()
        self._shipping.close(self.journal.committed, seconds)
        self._shutdown.close()


def _check_budget(settings: RunSettings, segment_bytes: int) -> None:
    """Refuse a budget that is smaller than one log file, since the monitor could never keep it."""
    budget = None if settings.monitor is None else settings.monitor.budget_bytes
    if budget is not None and budget < segment_bytes:
        raise UsageError(
            f"{settings.run}: a budget of {format_bytes(budget)} for each process is less than one log file of this run "
            f"({format_bytes(segment_bytes)}). Give at least {format_bytes(_FILES_OF_A_BUDGET * segment_bytes)}, or a smaller "
            "segment_bytes"
        )


def prepare_run_id(settings: RunSettings, *, framework: str) -> str:
    """Return the id of a run that one process trains. A run that is not here is fetched from its store, or else created.

    Raises:
        UsageError: the folder cannot hold a run.
        StoreUnavailable: the run is missing here, and the store does not answer.
    """
    paths = JournalPaths.of(settings.run)
    known = read_run_id(paths.folder)
    if known is None:
        url, _ = shipping_store(settings.monitor, settings.store)
        fetch_missing_journal(url, paths)
        journal = Journal.open(settings.run, framework=framework)
        known = journal.run.run_id
        journal.close()
    return known


def compare_environments(recorded: Mapping[str, Any], now: Mapping[str, Any], labels: Mapping[str, str]) -> list[Note]:
    """Return the differences that can change rounding.

    Args:
        recorded: environment that the run recorded.
        now: environment of this process.
        labels: keys to compare, each with its name in a message.
    """
    return [
        Note(
            "environment",
            f"{label} differs: the run was recorded with {recorded.get(key)!r}, now it is {now.get(key)!r}; "
            "what is computed from here on can round differently",
        )
        for key, label in labels.items()
        if recorded.get(key) != now.get(key)
    ]
