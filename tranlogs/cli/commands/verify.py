"""`tranlogs verify`: a check of every checksum and every chain, and with --replay of every fingerprint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ...base.errors import CorruptCatalog, TranLogsError, UsageError
from ...catalog import Catalog, Tables
from ...catalog.rows import is_on_lineage
from ...frameworks import open_offline_run
from ...journal import JournalPaths
from ...journal.owner_lock import OwnerLock
from ...rebuild_catalog import rebuild_catalog
from ...recovery.journal_facts import read_catalog, read_facts
from ...recovery.recover import Progress
from ...recovery.report import RecoveryReport, progress_bar
from ...shipping import StoreCopies
from ...stores import is_address
from ...verify import Checked, Problem, verify_journal
from .. import screen
from ..options import Json, Optimizers, RunOrUrl, command
from ..parameters import FINE, PROBLEM, Option
from ..reading.find_journals import find_journals, read_consistently
from ..screen import print_json

_MIB = 1 << 20
_PROBLEMS_SHOWN_MAX = 50


@dataclass(slots=True)
class Verified:
    """The result for one journal.

    Attributes:
        folder: the journal's folder.
        nbytes: bytes that were read.
        records: records of the log that were read.
        tensors: tensors that were read.
        problems: what is wrong.
        replays: reports of the replays; None if none was asked for.
        repaired: what --repair did, a sentence each.
    """

    folder: Path
    nbytes: int = 0
    records: int = 0
    tensors: int = 0
    problems: list[Problem] = field(default_factory=list)
    replays: list[RecoveryReport] | None = None
    repaired: list[str] = field(default_factory=list)


@command
def verify(
    target: RunOrUrl,
    replay: Annotated[bool, Option("--replay", help="Also redo all steps and compare every fingerprint.")] = False,
    repair: Annotated[bool, Option("--repair", help="Replace what is damaged; nobody may be training.")] = False,
    store: Annotated[
        str | None,
        Option("--store", metavar="URL", help="With --repair: the store with intact copies (default: the run's own)."),
    ] = None,
    optimizer: Optimizers = None,
    as_json: Json = False,
) -> int:
    """Check every byte: checksums, chains, checkpoints, the catalog.

    Parts that recovery cannot reach are not read: steps of abandoned timelines, and space that is not written yet.

    With --replay, all steps after the oldest checkpoint are redone, and the state after each is compared with the run's
    fingerprint.

    With --repair, a damaged catalog is rebuilt from segments and checkpoints, and kept under another name; a damaged segment or
    checkpoint is replaced by the store's copy.

    A store is checked by using it: write, look up, read back, wait until durable, delete.
    """
    if is_address(target):
        if replay or repair:
            raise UsageError("--replay and --repair are for a run on this machine: fetch it by `tranlogs pull` first")
        from .store import check  # imports what ships runs

        return check(target, as_json=as_json)
    run = Path(target)
    if store is not None and not repair:
        raise UsageError("--store requires --repair: it names where intact copies come from")
    if optimizer and not replay:
        raise UsageError("--optimizer requires --replay: without --replay no step is redone")
    found = []
    for paths in find_journals(run):
        with progress_bar() as progress:
            repaired = repair_journal(paths, store) if repair else []
            about = check_journal(paths, progress)
            about.repaired = repaired
            if replay:
                redo = partial(_replay, paths, optimizer or (), bool(about.problems), progress)
                about.replays, problems = read_consistently(paths.folder, redo, lambda found: found[1])
                about.problems += problems
        found.append(about)
    if as_json:
        print_json({"run": run, "problems": [problem for about in found for problem in about.problems], "ranks": found})
    else:
        _show(found)
    return PROBLEM if any(about.problems for about in found) else FINE


def _ignore_progress(what: str, done: int, total: int) -> None:
    pass


def check_journal(paths: JournalPaths, progress: Progress | None) -> Verified:
    """Read and check all of a journal."""
    progress = progress or _ignore_progress
    about, total = Verified(paths.folder), _estimate_bytes(paths)
    for finding in verify_journal(paths.folder):
        if isinstance(finding, Checked):
            about.nbytes += finding.nbytes
            about.records += finding.records
            about.tensors += finding.tensors
            progress("verify (MiB)", min(about.nbytes, total) // _MIB, total // _MIB)
        else:
            about.problems.append(finding)
    progress("verify (MiB)", total // _MIB, total // _MIB)
    return about


def _estimate_bytes(paths: JournalPaths) -> int:
    """Return an estimate of the bytes to read."""
    try:
        rows = read_catalog(paths.folder)
    except CorruptCatalog:
        return sum(path.stat().st_size for path in paths.folder.rglob("*") if path.is_file())
    return sum(row.used_bytes or row.size for row in rows.segments) + sum(row.nbytes for row in rows.checkpoints)


def _replay(
    paths: JournalPaths, optimizers: Sequence[str], is_damaged: bool, progress: Any
) -> tuple[list[RecoveryReport], list[Problem]]:
    """Redo the newest timeline from its oldest checkpoint, and after a hole in the log from the next checkpoint after it."""
    facts = read_facts(paths.folder)
    limits = facts.rows.limits
    replays: list[RecoveryReport] = []
    problems = []
    for row in sorted((row for row in facts.checkpoints if is_on_lineage(row, limits)), key=lambda row: row.sequence):
        if replays and row.step <= replays[-1].step:
            continue
        try:
            report = open_offline_run(paths, optimizers).replay(checkpoint=row.name, progress=progress)
        except UsageError:
            if is_damaged:  # the damage explains it, and is reported already
                break
            raise
        except TranLogsError as error:
            problems.append(Problem(paths.checkpoints / row.name, f"no step can be replayed from it: {error}", row.step))
            continue
        replays.append(report)
        if report.exact is False:
            what = f"the state replayed from checkpoint {row.step} differs from the run's fingerprint"
            problems.append(Problem(paths.log, what, report.first_divergent_step))
    return replays, problems


def _describe_replay(report: RecoveryReport) -> str:
    if not report.replayed:
        return f"nothing from checkpoint {report.checkpoint_step}: the log has no steps with their tensors behind it"
    compared = "all equal" if report.exact else "not every step could be compared"
    if report.exact is False:
        compared = f"differs from step {report.first_divergent_step} on"
    steps = screen.count(report.replayed, "step")
    return f"{steps} from checkpoint {report.checkpoint_step} in {report.seconds_replay:.2f} s: {compared}"


def _describe_result(about: Verified) -> str:
    if about.problems:
        return screen.count(len(about.problems), "problem")
    if about.replays is not None and not any(report.replayed for report in about.replays):
        return "the files are intact; there was no step to replay"
    return "intact"


def _show(found: Sequence[Verified]) -> None:
    out = screen.console()
    for about in found:
        rows: list[tuple[str, object]] = [
            ("journal", about.folder),
            ("read", f"{screen.size(about.nbytes)}: {about.records} records, {about.tensors} tensors"),
        ]
        for report in about.replays or ():
            rows.append(("replayed", _describe_replay(report)))
            rows += [("note", note) for note in report.notes]
        rows += [("repaired", line) for line in about.repaired]
        rows.append(("result", _describe_result(about)))
        out.print(screen.facts(rows))
        for problem in about.problems[:_PROBLEMS_SHOWN_MAX]:
            out.print(screen.problem(str(problem)))
        if len(about.problems) > _PROBLEMS_SHOWN_MAX:
            out.print(f"... and {len(about.problems) - _PROBLEMS_SHOWN_MAX} more (--json shows all)")


def repair_journal(paths: JournalPaths, url: str | None) -> list[str]:
    """Repair a journal that nobody writes. Return what was done, a sentence each.

    Args:
        paths: of the journal.
        url: store with intact copies; None for the one to which the journal is shipped.

    Raises:
        RunInUse: a process writes the journal.
    """
    lock = OwnerLock(paths.folder)
    try:
        done = [] if _is_catalog_intact(paths.folder) else rebuild_catalog(paths.folder)
        problems = [finding for finding in verify_journal(paths.folder) if isinstance(finding, Problem)]
        copies = StoreCopies(paths, url)
        for part in dict.fromkeys(part for problem in problems if (part := _part_of(paths, problem))):
            if source := copies.replace(part.name):
                done.append(f"{part.name} was damaged, and was replaced by the copy in {source}")
            elif not part.exists():  # somebody deleted it
                done += rebuild_catalog(paths.folder)
        return done
    finally:
        lock.release()


def _part_of(paths: JournalPaths, problem: Problem) -> Path | None:
    """Return the segment or checkpoint that a problem is of; None if it is of the catalog."""
    parts = problem.path.relative_to(paths.folder).parts  # log/FILE, checkpoints/NAME/FILE
    return paths.folder / parts[0] / parts[1] if len(parts) > 1 else None


def _is_catalog_intact(folder: Path) -> bool:
    """Return True if every row of the catalog can be read."""
    try:
        with Catalog.open(folder) as catalog:
            catalog.read(Tables.check)
            return catalog.run() is not None
    except CorruptCatalog:
        return False
