"""Recovery of a run in the process that trains it, and the begin of a fresh run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, Literal

from tranlogs.base.errors import NotRecovered, RecoveryError, UsageError
from tranlogs.base.notes import coded
from tranlogs.ranks import (
    GroupRecovered,
    extend_timeline_ids,
    get_first_timeline_id,
    get_timeline_ids,
    new_timeline_id,
)
from tranlogs.training import (
    LEFT_NOW,
    SHOWS_NO_TENSORS,
    LastUnit,
    LoopRecord,
    Progress,
    Recovered,
    RecoveryReport,
    Target,
    describe_not_computed,
    describe_script_change,
    describe_superseded,
    name_missing_unit,
    recover,
)

from ..distributed.process_group import demand_group
from ..elastic.world_size import settle_in
from ..sharding import fsdp
from ..state.caveats import has_steps
from ..state.compatibility import compare_modules, compare_schedulers, describe_modules
from .landed_state import LandedState, show
from .resume_report import ResumeReport
from .run_parts import RunParts
from .unit_recheck import OUTSIDE, UnitRecheck
from .write_forecast import forecast

_log = logging.getLogger("tranlogs")


class Recovery:
    """Brings a run back to its newest boundary, or begins it.

    Args:
        parts: of the run.
        on_begun: called when a fresh run begins.
        on_landed: called when the state is that of a boundary.
        on_set_back: called when the recorded state was set back in the middle of a loop.

    Attributes:
        recheck: compares the unit that is computed again.
        report: the report of the recovery.
    """

    def __init__(
        self,
        parts: RunParts,
        on_begun: Callable[[], None],
        on_landed: Callable[[], None],
        on_set_back: Callable[[], None],
    ) -> None:
        self._parts, self._on_begun, self._on_landed = parts, on_begun, on_landed
        self.recheck = UnitRecheck(parts, self._recover_end, on_set_back)
        self.report = ResumeReport(parts, self.recheck)
        self._landed: dict[str, Any] = {}  # the boundary that recovery landed on
        self._landed_state: LandedState | None = None  # what recovery has restored, until the loop begins
        self._suspects: list[
            str
        ] = []  # what was set before a step outside of all loops, where the loop may set it in each turn
        self._is_of_group = False  # the ranks have recovered together
        self._shared_id: str | None = None  # of a journal, the same on all ranks
        self._recorded_restarts: dict[str, Any] | None = None  # of the boundary that recovery landed on

    @property
    def run_id(self) -> str:
        """The id of the run, which all ranks share.

        It is the id of the first timeline, which the ranks gave it together; for a run that one process began, its journal's.

        Raises:
            UsageError: several processes train together, and have not met yet.
        """
        if self._shared_id is None:
            if not self._parts.coordinator.is_single:
                raise UsageError(
                    f"{self._parts.settings.run}: run_id is known only after recover(), where the ranks agree on it"
                )
            self._shared_id = self._parts.journal.run.run_id
        first = get_first_timeline_id(self._parts.environment)
        return first or self._shared_id

    # Recovering.

    def recover(self, step: int | None, progress: Progress | None) -> RecoveryReport:
        """Bring everything back to the newest boundary, or to `step`. A fresh run starts from what the script has built."""
        parts, journal, state, coordinator = self._parts, self._parts.journal, self._parts.state, self._parts.coordinator
        demand_group(parts.settings.run, was_alone=coordinator.is_single)
        start = time.monotonic()
        fsdp.reshard(parts.modules)  # what was gathered from the shards before is not what they are going to be
        state.named.refresh()  # a group may have been added since
        state.given.loaded = (
            set() if journal.is_fresh else {which for which, hooks in parts.hooks.items() if has_steps(hooks.inner)}
        )
        self._require_same_settings()
        self.report.is_at_end = step is None and journal.was_finished
        if step is not None:
            journal.holds.hold()
        rechecks = self._agree_to_recheck(step)
        find_obstacle = self._find_obstacle if rechecks else None
        landing = coordinator.recover(journal, parts.auxiliary.read, step, progress, parts.resources.spare, find_obstacle)
        if landing is None and coordinator.is_single:
            found = self._recover_alone(step, progress, rechecks=rechecks)
        else:
            found = None if landing is None else landing.recovered
        if landing is not None:
            parts.environment.update(since=landing.first_timeline, past=landing.timeline_ids)
        if found is None:
            return self._begin_fresh(step, is_first=landing is None)
        parts.describe_environment()
        self._compare_settings()
        self.report.has_loaded = bool(state.given.loaded)
        if landing is not None:
            self._landed = settle_in(state, landing, self._landed)
            coordinator.restore_division(self._landed)
        self._continue_from(found, landing)
        if landing is not None:
            self._land_together(landing, found)
        parts.restarts.resume(self._recorded_restarts)
        self._landed_state = LandedState(parts) if self.recheck.is_pending else None
        return self.report.begin(found, time.monotonic() - start)

    def _agree_to_recheck(self, step: int | None) -> bool:
        """Return True if the newest unit is to be computed again: all ranks want that, and one has not come to its end."""
        parts, coordinator = self._parts, self._parts.coordinator
        wanted = parts.settings.rechecks and step is None
        answers = coordinator.all_gather([wanted, parts.journal.was_finished, coordinator.recheck_obstacle])
        without = [rank for rank, (is_wanted, _, _) in enumerate(answers) if not is_wanted]
        if len(without) == len(answers) or all(is_finished for _, is_finished, _ in answers):
            return False
        obstacles = [obstacle for _, _, obstacle in answers if obstacle]
        self.recheck.obstacle = f"rank {without[0]} has recheck=False" if without else next(iter(obstacles), "")
        return not self.recheck.obstacle

    def _find_obstacle(self, found: Recovered) -> str:
        """Return why the unit after a recovery is known to come out otherwise; "" if it may be equal."""
        state = self._parts.state
        if not self._parts.rung.logs_tensors:
            return SHOWS_NO_TENSORS
        if state.redone.stale:
            return "the state of an optimizer was not logged"
        if compare_modules(state.redone.environment.get("settings", {}), describe_modules(self._parts.modules)):
            return "the script makes a module with other settings than the run's"
        if self._parts.auxiliary.is_outside and self._parts.auxiliary.has_loaders:
            return OUTSIDE  # the script takes these steps again, in place of the unit
        assert found.last_unit is not None
        return self.recheck.find_obstacle(found.last_unit)

    def _recover_alone(self, step: int | None, progress: Progress | None, *, rechecks: bool) -> Recovered | None:
        """Recover the journal of this process: one unit before the newest boundary, if that unit can show anything."""
        state, folder, spare = self._parts.state, self._parts.journal.paths.folder, self._parts.resources.spare
        target = Target(step, before_last_unit=rechecks, compares=True)
        found = recover(folder, state, target, progress=progress, spare=spare)
        if found is None or not rechecks or found.plan.recomputed:
            return found
        if found.last_unit is None:
            rung = self._parts.rung
            self.recheck.obstacle = name_missing_unit(is_logged=rung.logs_tensors and not rung.is_measured)
        elif obstacle := self._find_obstacle(found):
            self.recheck.obstacle = obstacle
            return recover(folder, state, progress=progress, spare=spare)
        return found

    def _recover_end(self, unit: LastUnit) -> Recovered:
        """Bring everything to the newest boundary, which ends a unit, as the log has it. All ranks must call it."""
        parts, coordinator = self._parts, self._parts.coordinator
        spare, found = parts.resources.spare, None
        if self._is_of_group:
            fsdp.reshard(parts.modules)
            landing = coordinator.recover(parts.journal, parts.auxiliary.read, None, None, spare, None)
            found = None if landing is None else landing.recovered
        else:
            found = recover(parts.journal.paths.folder, parts.state, Target(sequence=unit.end.sequence), spare=spare)
        assert found is not None, "a run with a unit holds something"
        found.require_position(unit.end)
        parts.scalars.extend(found.scalars)
        parts.state.named.refresh()
        if self._is_of_group:
            coordinator.restore_division(self._landed)
            coordinator.stand_at(unit.end.step)
            self._landed = {}
        parts.writes.remember(parts.journal.step)
        return found

    def settle_script_changes(self, opens: Literal["own", "next", ""]) -> bool:
        """Compare the state, as a loop begins, with that where recovery has landed. What the script has changed stands.

        If it has changed something, on any rank, the unit that was to be computed again is trained like any other: a new
        timeline begins where recovery has landed, and the record of the unit counts no more.

        Args:
            opens: the loop that begins. Outside of all loops (""), the loop may set everything in each turn, and the unit is
                compared as it comes out. Before a loop after that in which the run stood ("next"), that loop was left at once:
                if nothing was changed, training goes on at the newest boundary.

        Returns:
            False if no unit is to be computed again.
        """
        parts, start, landed = self._parts, time.monotonic(), self._landed_state
        if not self.recheck.is_pending or landed is None:
            return False
        tensors, hyper = landed.find_tensor_changes(), landed.find_hyper_changes()
        if not tensors:  # perhaps written, with the values that were there
            parts.writes.remember(parts.journal.step)
        if not opens:
            self._landed_state, self._suspects = None, show(tensors + hyper)
            return True
        texts = show(tensors + hyper + landed.find_other_changes(self.recheck.ignored))
        answers = parts.coordinator.all_gather([texts, parts.journal.log.next_timeline, new_timeline_id()])
        changed = [rank for rank, (found, _, _) in enumerate(answers) if found]
        if changed:
            self._landed_state, parts.auxiliary.has_script_changes = None, True
            self._supersede(max(number for _, number, _ in answers), answers[0][2], changed[0])
            for text in texts:
                parts.report.warn(describe_script_change(text), False)
            self.report.note_set_back(None)
        elif opens == "next":
            self._landed_state = None
            found = self.recheck.abandon()
            parts.auxiliary.reopen()
            self._on_landed()
            parts.report.warn(describe_not_computed(LEFT_NOW), False)
            self.report.begin(found, time.monotonic() - start)
        return True

    def _supersede(self, number: int, name: str, rank: int) -> None:
        """Begin a timeline where recovery has landed, on all ranks.

        Args:
            number: of the timeline.
            name: its id.
            rank: on which the script has changed something.
        """
        parts = self._parts
        if self._is_of_group:
            ids, step = get_timeline_ids(parts.environment), parts.journal.step
            parts.environment.update(past=extend_timeline_ids(ids, step, name))
        unit = self.recheck.supersede(number)
        where = "" if parts.coordinator.is_single else f" on rank {rank}"
        parts.report.warn(describe_superseded(unit, where), False)

    def read_newest_loop(self) -> LoopRecord:
        """Return the loop of the newest boundary of the log, if the unit before it is computed again; else an empty record."""
        is_skipped = self.recheck.is_pending and not self.recheck.is_covered  # else loops behind are computed again
        return LoopRecord.read(self.recheck.read_end().get("loop") if is_skipped else None)

    def note_tracked(self, names: Collection[str]) -> None:
        """Note that objects were tracked, or attributes remembered, after the recovery."""
        if self._landed_state is not None:
            self._landed_state.note_tracked(names)

    def _compare_settings(self) -> None:
        """Say where the script makes modules and schedulers with other settings than the run's. A scheduler's come back."""
        parts, recorded = self._parts, self._parts.state.redone.environment
        for note in compare_modules(recorded.get("settings", {}), parts.environment["settings"]):
            parts.report.warn(note, False)
        built = parts.auxiliary.built
        parts.state.redone.notes += compare_schedulers(recorded.get("schedulers", {}), built)
        built.update({name: about for name, about in recorded.get("schedulers", {}).items() if name in built})

    def _begin_fresh(self, step: int | None, *, is_first: bool) -> RecoveryReport:
        parts = self._parts
        if step not in (None, 0):
            raise UsageError(f"{parts.settings.run}: cannot recover step {step}: the run is empty")
        report = parts.report.current = RecoveryReport(forecast=forecast(parts))
        self.begin(is_first=is_first)
        return report

    def _continue_from(self, found: Recovered, landing: GroupRecovered | None) -> None:
        """Let the journal, the loaders and the watch for writes go on from where the state is now."""
        parts, journal = self._parts, self._parts.journal
        if landing is None:
            parts.resources.continue_from(found)
        else:
            parts.resources.continue_from(found, new_timeline=landing.is_new, number=landing.timeline)
            self._is_of_group, self.recheck.starts_timeline = True, landing.is_new
            self.recheck.obstacle = self.recheck.obstacle or landing.obstacle
        self.recheck.begin(found)
        if self.recheck.is_covered:
            parts.rung.compute_again()
        if parts.auxiliary.deviation is not None and parts.auxiliary.deviation[1]:
            parts.rung.note_difference()
        parts.scalars.extend(found.scalars)
        parts.state.named.refresh()
        parts.writes.remember(journal.step)
        for hooks in parts.hooks.values() if found.position.step else ():
            hooks.mark_called()
        if found.position.sequence:  # not the checkpoint before the first step, where the script is at the same place again
            parts.auxiliary.reopen()
        self._on_landed()

    def _land_together(self, landing: GroupRecovered, found: Recovered) -> None:
        """Do what all ranks do before any of them goes on."""
        parts, coordinator, caveats_found = self._parts, self._parts.coordinator, landing.caveats
        body = {**self._landed, "scalars": parts.scalars.pack()}
        coordinator.align_rung(parts.rung)
        is_any_lost = any(coordinator.all_gather(landing.is_journal_lost))
        begins = landing.starts_generation or is_any_lost  # a disk that is lost next costs nothing more
        # The new timeline begins in all journals before the first record: else a crash could leave steps of two histories.
        if landing.is_new and not landing.is_resharded and not self.recheck.is_pending:
            parts.journal.start()
            coordinator.all_gather(True)  # nothing is in any of them before it is begun in all: else it never was
        if begins:
            coordinator.exchange_backups(body)
        if landing.is_resharded:
            self._begin_resharded(body)
        elif begins:
            parts.journal.checkpoint(parts.state.snapshot(body), wait=True)
        step = found.position.step
        caveats_found += [
            *coordinator.find_caveats(),
            *coordinator.restore_reducers(body, step, step if begins else found.plan.checkpoint.step),
        ]
        caveats_found = coordinator.gather_caveats(caveats_found)
        parts.report.caveats += [(note, False) for note in coded("not-recovered", caveats_found)]
        found.notes += landing.notes
        self._landed = {}  # it may be large

    def _begin_resharded(self, body: dict[str, Any]) -> None:
        """Begin with a checkpoint. Until all ranks have theirs, only the former journals together hold the whole state.

        Raises:
            RecoveryError: one could not be written; the run is as it was.
        """
        parts = self._parts
        with parts.journal.holds.hold_during():
            parts.journal.start()
            is_written = parts.journal.checkpoint(parts.state.snapshot(body), wait=True)
            written = parts.coordinator.all_gather(is_written)
            if not all(written):
                raise RecoveryError(
                    f"{parts.settings.run}: rank {written.index(False)} could not write the initial checkpoint, without "
                    "which later steps would be lost. The run is unchanged: start again when its disk is writable"
                )

    # The report.

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        """Set the auxiliary state of a boundary; called by the state while it is recovered."""
        self._recorded_restarts = body.get("restarts")
        self._landed = body
        self._parts.state.is_shared = bool(body.get("ddp", {}).get("is_divided"))
        self._parts.auxiliary.write(body)
        if "scalars" in body:
            self._parts.scalars.unpack(body["scalars"])

    def settle_recheck(self) -> bool:
        """Draw the conclusion if the unit that is computed again is over; return True if it is."""
        if not self.recheck.settle():
            return False
        self._landed_state = None
        for text in self._suspects if self._parts.report.recheck == "different" else ():
            self._parts.report.warn(describe_script_change(text), False)
        self.report.note_set_back(self.recheck.recovered)
        return True

    # Beginning.

    def _require_same_settings(self) -> None:
        """Refuse settings that differ between processes which train together, and agree on the id of the run."""
        parts = self._parts
        logs = {f"log of optimizer {name!r}": hooks.log for name, hooks in parts.hooks.items()}
        overhead = "no bound" if parts.rung.overhead is None else f"{100 * parts.rung.overhead:g} %"
        parts.coordinator.require_same_settings({"durability": parts.settings.durability, "overhead": overhead, **logs})
        if self._shared_id is None:
            ids = parts.coordinator.all_gather((parts.journal.is_fresh, parts.journal.run.run_id))
            self._shared_id = next((name for is_fresh, name in ids if not is_fresh), ids[0][1])

    def begin(self, *, is_first: bool = True) -> None:
        """Begin a fresh run with a checkpoint of what was built.

        Args:
            is_first: whether all ranks begin.

        Raises:
            NotRecovered: the run is not fresh, and `recover()` was not called.
        """
        parts, journal, state, coordinator = self._parts, self._parts.journal, self._parts.state, self._parts.coordinator
        run = parts.settings.run
        if not journal.is_fresh:
            raise NotRecovered(run, journal.catalog.watermarks().committed)
        demand_group(run, was_alone=coordinator.is_single)
        self._require_same_settings()
        self._on_begun()
        parts.describe_environment()
        state.named.refresh()
        if not state.given.by_optimizer:
            state.given.note({which: state.named.hyper(which) for which in parts.hooks})
        parts.writes.remember(journal.step)
        if is_first:
            parts.environment.update(coordinator.first_timeline_ids())
        journal.start()
        parts.auxiliary.note_start()
        body = parts.auxiliary.read()
        for caveat in coordinator.find_caveats():
            _log.warning("%s: %s", run, caveat)
        body["scalars"] = parts.scalars.pack()
        if not is_first:  # the others continue from what they have: they report it as they land, and that they have begun
            coordinator.align_rung(parts.rung)
            coordinator.all_gather(True)
            coordinator.all_gather(True)
        coordinator.exchange_backups(body)
        journal.checkpoint(state.snapshot(body), wait=True)
        if not is_first:
            coordinator.restore_reducers({}, 0, 0)
        coordinator.gather_caveats([])
