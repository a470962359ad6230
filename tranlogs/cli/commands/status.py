"""`tranlogs status`: the contents of a run, its watermarks and writer, and what a crash now would lose; or a line a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import rich.console
from rich.console import RenderableType

from ...base.errors import NotARun, TranLogsError, UsageError, error_text
from ...base.quantities import parse_seconds
from ...journal import JournalPaths
from ...retention.lost_work import LostWork, has_store
from ...stores import is_address
from .. import screen
from ..options import Json, command
from ..parameters import FINE, PROBLEM, Argument, Option
from ..reading.find_journals import find_journals, is_journal
from ..reading.survey import GroupSurvey, Survey, describe_monitor, survey, survey_group
from ..screen import print_json

_ROWS_MAX = 12  # rows of a table; JSON has all rows
_NOT_SHOWN = ("sharding", "settings", "schedulers")  # of the environment: they are long
_SCOPE_TITLES = {"process": "process dies", "machine": "power fails", "site": "site is gone"}
_UNREAD = "(the bytes of log and checkpoints are checked by `tranlogs verify`, not here)"
_ROWS_WATCHED_MAX = 4  # with --watch, where all must fit the window, and for each of several ranks

_NAME_MAX = 32  # characters of a run's name; JSON has all


@command
def status(
    target: Annotated[str, Argument(metavar="RUN|FOLDER|URL", help="Run, rank, folder of runs, or URL of a store.")],
    watch: Annotated[bool, Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[str, Option(help="With --watch: time between two refreshes.")] = "2s",
    as_json: Json = False,
) -> int:
    """Show the newest steps of a run, and what a crash now would lose.

    For a folder that contains runs, and for the URL of a store, print one line for each run.
    """
    if is_address(target):
        from .store import show_runs  # imports what ships runs, which no other status needs

        return show_runs(target, as_json=as_json)
    run = Path(target)
    seconds = parse_seconds(interval, "--interval")
    if seconds <= 0:
        raise UsageError(f"--interval must be positive, got {interval}")
    try:
        find_journals(run)
    except NotARun:
        if runs := summarize_runs(run):
            return _overview(run, runs, watch, as_json=as_json)
        raise
    if watch:
        return _watch(run, seconds, as_json=as_json)
    found, group = _survey_run(run)
    if as_json:
        print_json(_as_dict(run, found, group))
    else:
        screen.console().print(_render(found, group, _ROWS_MAX))
    return _exit_code(found, group)


def _overview(folder: Path, runs: Sequence[RunSummary], watch: bool, *, as_json: bool) -> int:
    if watch:
        names = ", ".join(str(line.run) for line in runs[:3])
        raise UsageError(
            f"{folder} contains {screen.count(len(runs), 'run')}: --watch one of them ({names}), "
            "or run `tranlogs monitor --http`"
        )
    problems = [problem for line in runs for problem in line.problems]
    if as_json:
        print_json({"folder": folder, "problems": problems, "runs": runs})
    else:
        screen.console().print(render_overview(runs))
    return PROBLEM if problems else FINE


def _watch(run: Path, seconds: float, *, as_json: bool) -> int:
    """Show the status again and again: in place in a terminal, and one after the other elsewhere."""
    from rich.live import Live

    console = screen.console()
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                while True:
                    live.update(_render(*_survey_run(run), _ROWS_WATCHED_MAX), refresh=True)
                    time.sleep(seconds)
        while True:
            if as_json:
                print_json(_as_dict(run, *_survey_run(run)))
            else:
                console.print(_render(*_survey_run(run), _ROWS_WATCHED_MAX), "")
            time.sleep(seconds)
    return FINE


def _survey_run(run: Path) -> tuple[list[Survey], GroupSurvey | None]:
    journals = find_journals(run)
    return [survey(paths.folder) for paths in journals], None if journals[0].folder == run else survey_group(journals[0].folder)


def _problems(found: Sequence[Survey], group: GroupSurvey | None) -> list[str]:
    return [problem for rank in found for problem in rank.problems] + (group.problems if group is not None else [])


def _exit_code(found: Sequence[Survey], group: GroupSurvey | None) -> int:
    return PROBLEM if _problems(found, group) else FINE


def _as_dict(run: Path, found: Sequence[Survey], group: GroupSurvey | None) -> dict[str, Any]:
    return {"run": run, "problems": _problems(found, group), "group": group, "ranks": [rank.as_dict() for rank in found]}


def _render(found: Sequence[Survey], group: GroupSurvey | None, rows_max: int) -> RenderableType:
    rows_max = rows_max if len(found) == 1 else min(rows_max, _ROWS_WATCHED_MAX)
    parts = [part for rank in found for part in _render_journal(rank, rows_max)]
    return rich.console.Group(*([*_render_group(group), ""] if group is not None else ()), *parts, _UNREAD)


def _render_group(group: GroupSurvey) -> list[RenderableType]:
    ranks = "1 rank goes" if group.world == 1 else f"{group.world} ranks go"
    outcome = "nothing could be recovered" if group.step is None else f"{ranks} back to step {group.step}"
    stopped = ", ".join(map(str, group.stopped))
    rows = [("group", f"a crash now: {outcome}")]
    rows += [("stopped", f"rank {stopped}: trained before the run continued with {group.world}")] if stopped else []
    return [screen.facts(rows), *(screen.problem(message) for message in group.problems)]


def _render_journal(found: Survey, rows_max: int) -> list[RenderableType]:
    parts: list[RenderableType] = [screen.facts(_list_facts(found)), ""]
    if found.checkpoints:
        parts.append(_checkpoints(found, rows_max))
    if found.segments:
        parts.append(_segments(found, rows_max))
    if found.incidents:
        parts.append(_incidents(found, rows_max))
    if len(found.timelines) > 1:
        parts.append(_timelines(found, rows_max))
    return parts + [screen.problem(message) for message in found.problems]


def _list_facts(found: Survey) -> list[tuple[str, object]]:
    marks, nbytes = found.watermarks, found.count_bytes()
    rows: list[tuple[str, object]] = [
        ("journal", f"{found.folder} ({found.run.framework or 'framework unknown'}, timeline {found.timeline})"),
        ("created", screen.moment(found.run.created_at)),
        ("writer", _describe_writer(found)),
        ("committed", f"step {marks.committed}: survives the process"),
        ("synced", _describe_synced(found)),
    ]
    if has_store(marks, found.store):
        rows += [
            ("archived", f"step {marks.archived}: in the store"),
            ("persisted", f"step {marks.persisted}: durable in the store"),
        ]
    if found.store is not None:
        rows.append(("store", found.store.url if not found.store.problem else f"not shipping now: {found.store.problem}"))
    if (advice := found.advise()) is not None:
        rows.append(("recorded", advice.recorded))
    rows += [(_SCOPE_TITLES[one.scope], f"loses {one.describe()}{_describe_rest(found, one)}") for one in found.lost_work()]
    rows += describe_monitor(found)
    rows += [
        ("a crash now", _describe_recovery(found)),
        (
            "bytes",
            f"log {screen.size(nbytes['log'])} in files of {screen.size(nbytes['files'])}, "
            f"checkpoints {screen.size(nbytes['checkpoints'])}; {screen.size(nbytes['in_all'])} on disk in all",
        ),
    ]
    if found.environment:
        words = [
            f"{key} {_shorten(value)}"
            for key, value in found.environment.items()
            if value not in (None, False, True) and key not in _NOT_SHOWN
        ]
        rows.append(("environment", ", ".join(words)))
        if sharding := found.environment.get("sharding"):
            rows.append(("sharded", _describe_sharding(sharding)))
    return rows


def _describe_synced(found: Survey) -> str:
    synced, step = found.watermarks.synced, _find_synced_checkpoint(found)
    if found.in_memory:
        return f"step {synced}: to memory only (tmpfs)"
    if step is None:
        has_closed = found.owner is not None and found.owner.has_closed
        least = "" if synced == found.watermarks.committed or has_closed else "at least "  # else the catalog lags behind
        return f"{least}step {synced}: survives power loss"
    return f"step {step}, by its checkpoint: survives power loss (log: step {synced})"


def _describe_rest(found: Survey, lost: LostWork) -> str:
    """Return what a power failure leaves, where it costs steps."""
    if lost.scope != "machine" or not lost.steps or lost.nothing_left:
        return ""
    is_checkpoint = lost.safe_step == _find_synced_checkpoint(found)
    return f": {'the checkpoint of ' if is_checkpoint else ''}step {lost.safe_step} is left"


def _find_synced_checkpoint(found: Survey) -> int | None:
    """Return the step of the newest checkpoint if it lies after the synced part of the log: published, it is on disk."""
    machine = next(one for one in found.lost_work() if one.scope == "machine")
    return machine.safe_step if not found.in_memory and machine.safe_step > found.watermarks.synced else None


def _describe_sharding(sharding: dict[str, Any]) -> str:
    over = [
        " x ".join(f"{name} {size}".strip() for name, size in zip(mesh["names"] or [""], mesh["shape"], strict=False))
        for mesh in sharding["meshes"]
    ]
    return screen.count(len(sharding["tensors"]), "parameter") + (f", over {', '.join(over)} ranks" if over else "")


def _describe_writer(found: Survey) -> str:
    owner = found.owner
    if owner is None:
        return "nobody"
    if not owner.pid:
        return "a process that is not known (its owner.json is missing)"
    who = f"process {owner.pid} on {owner.host}" + (f", since {screen.moment(owner.since)}" if owner.since else "")
    if owner.is_alive:
        return who
    if not owner.has_closed:
        return f"nobody (ended without closing: {who})"
    return f"nobody (finished: {who})" if owner.has_finished else f"nobody (closed by {who})"


def _describe_recovery(found: Survey) -> str:
    plan = found.plan
    if plan is None:
        return "nothing could be recovered" if found.problems else "the run is still empty"
    steps = screen.count(plan.position.step - plan.checkpoint.step, "step")
    again = f"; training computes {plan.recomputed_steps} again" if plan.recomputed else ""
    return f"goes back to step {plan.position.step}: checkpoint {plan.checkpoint.step} and {steps} of log{again}"


def _shorten(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    return "/".join(str(item) for item in value) if isinstance(value, (list, tuple)) else str(value)


def _checkpoints(found: Survey, rows_max: int) -> RenderableType:
    rows = [
        (row.step, row.timeline, screen.size(row.nbytes), screen.moment(row.created_at), f"{row.seconds:.2f} s")
        for row in found.checkpoints[-rows_max:]
    ]
    columns = ("step", "timeline", "size", "taken", "writing took")
    return screen.table(
        _title("checkpoints", found.checkpoints, rows_max), columns, rows, numbers=("step", "size", "writing took")
    )


def _segments(found: Survey, rows_max: int) -> RenderableType:
    rows = [
        (
            row.ordinal,
            row.state,
            row.timeline or "-",
            _describe_steps(row.base_step, row.last_step),
            screen.size(row.used_bytes),
            screen.size(row.size),
        )
        for row in found.segments[-rows_max:]
    ]
    columns = ("segment", "state", "timeline", "steps", "used", "file")
    return screen.table(_title("segments", found.segments, rows_max), columns, rows, numbers=("segment", "used", "file"))


def _describe_steps(base: int, last: int) -> str:
    return f"{base + 1} to {last}" if last > base else "-"


def _incidents(found: Survey, rows_max: int) -> RenderableType:
    rows = [
        (row.from_step, screen.moment(row.from_time), "not yet" if row.to_step is None else row.to_step, row.why)
        for row in found.incidents[-rows_max:]
    ]
    columns = ("from step", "at", "until step", "why")
    return screen.table(
        _title("logging was suspended", found.incidents, rows_max), columns, rows, numbers=("from step", "until step")
    )


def _timelines(found: Survey, rows_max: int) -> RenderableType:
    rows = [
        (row.number, row.parent or "-", row.fork_step if row.parent else "-", screen.moment(row.created_at))
        for row in found.timelines[-rows_max:]
    ]
    return screen.table(
        _title("timelines", found.timelines, rows_max), ("timeline", "left timeline", "at step", "created"), rows
    )


def _title(name: str, rows: Sequence[object], rows_max: int) -> str:
    return name if len(rows) <= rows_max else f"{name} (the newest {rows_max} of {len(rows)})"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of one run, for a list of runs.

    Attributes:
        run: the run's folder.
        ranks: number of journals; 0 if the run has not begun, or cannot be read.
        writers: number of journals that a live process writes.
        state: "training", "closed" (by its process), "died" (without closing), "new", or "unreadable".
        committed: the step that all ranks have committed; None if this is not known.
        recovery_step: the step to which a crash now would go back; None if nothing could be recovered.
        nbytes: size of log and checkpoints.
        problems: what is wrong, one sentence each.
    """

    run: Path
    ranks: int
    writers: int
    state: str
    committed: int | None
    recovery_step: int | None
    nbytes: int
    problems: tuple[str, ...]


def summarize_runs(folder: Path) -> list[RunSummary]:
    """Survey the runs in a folder, by name. A run that cannot be read is among them, with the reason as its problem."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() and not is_journal(folder) else ():
        try:
            if not is_journal(path) and path.is_dir():
                found.append(summarize_run(path, find_journals(path)))
        except NotARun:
            continue
        except (TranLogsError, OSError) as error:
            found.append(RunSummary(path, 0, 0, "unreadable", None, None, 0, (_describe_failure(path, error),)))
    return found


def _describe_failure(run: Path, error: Exception) -> str:
    text = error_text(error)
    return text if str(run) in text else f"{run}: {text}"


def summarize_run(run: Path, journals: Sequence[JournalPaths]) -> RunSummary:
    """Survey one run."""
    found = [survey(paths.folder) for paths in journals]
    group = survey_group(journals[0].folder)
    steps = [rank.plan.position.step for rank in found if rank.plan is not None]
    recovery_step = group.step if group is not None else min(steps) if len(steps) == len(found) else None
    problems = [problem for rank in found for problem in rank.problems] + (group.problems if group is not None else [])
    alive = sum(rank.owner is not None and rank.owner.is_alive for rank in found)
    nbytes = sum(rank.log_bytes + rank.checkpoint_bytes for rank in found)
    committed = min(rank.watermarks.committed for rank in found)
    return RunSummary(run, len(found), alive, _summarize_state(found, alive), committed, recovery_step, nbytes, tuple(problems))


def _summarize_state(found: Sequence[Survey], alive: int) -> str:
    owners = [rank.owner for rank in found]
    if alive:
        return "training"
    if all(owner is None for owner in owners):
        return "new"
    return "closed" if all(owner is None or owner.has_closed for owner in owners) else "died"


def render_overview(runs: Sequence[RunSummary]) -> RenderableType:
    """Return all runs as a table, with the problems below it."""
    rows = [
        (
            _shorten_name(line.run.name),
            _describe_state(line),
            "-" if line.committed is None else line.committed,
            "-" if line.recovery_step is None else line.recovery_step,
            screen.size(line.nbytes),
        )
        for line in runs
    ]
    columns = ("run", "state", "committed", "recovers to", "bytes")
    table = screen.table("runs", columns, rows, numbers=("committed", "recovers to", "bytes"))
    return rich.console.Group(table, *(screen.problem(problem) for line in runs for problem in line.problems))


def _shorten_name(name: str) -> str:
    """Return a name that does not widen all rows; names of runs differ at both ends."""
    half = _NAME_MAX // 2
    return name if len(name) <= _NAME_MAX else f"{name[: half - 1]}…{name[-half:]}"


def _describe_state(line: RunSummary) -> str:
    """Return a run's state, with the number of ranks that are in it."""
    return line.state if line.ranks <= 1 else f"{line.state} ({line.writers or line.ranks} of {line.ranks} ranks)"
