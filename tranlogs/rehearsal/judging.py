"""Judging of a script by what its arms have left, and the lines that would make it resume exactly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from ..base.notes import Note
from ..base.quantities import count
from ..recovery.report import Restart
from ..training.restarts import describe_restarts, lines_of, listed, name_of
from .arms import Arm, Killed, describe_end, last_errors
from .compare_output import compare_files, compare_printed, has_printed
from .compare_runs import ESSENTIAL, Difference, Kind, compare_runs, find_unsteady
from .processes import Life
from .verdict import NotJudged, Outcome, Verdict

_INDEX = re.compile(r"\[\d+\]")
_BEHIND_EPOCH = 4  # units that are trained after the end of an epoch, and in which a kill may come


def judge(twin: Arm, killed: Arm, kills: Killed, framework: str, make_control: Callable[[], Arm]) -> Verdict:
    """Compare the script that was killed with the one that was not, and judge.

    Args:
        twin: the script that was not killed.
        killed: the script that was.
        kills: the kills.
        framework: "torch" or "keras".
        make_control: runs the script once more without a kill. It is called if something differs: the difference may be one
            between any two starts.

    Raises:
        NotJudged: two runs without a kill differ, too; or nothing was killed.
    """
    if kills.failure is not None:
        return _judge_failure(killed, kills)
    if not kills.kills:
        raise NotJudged("No kill came before the last unit. Give more --units, or more --kills.")
    comparison = _Comparison(twin, killed, None)
    if comparison.differences:
        control = make_control()
        _require_steady(twin, control)
        comparison = _Comparison(twin, killed, control)
    verdict = _begin_verdict(kills, killed.lives)
    last = twin.lives[-1]
    verdict.units, verdict.step = len({event["step"] for event in last.units}), last.steps
    verdict.ranks = len({event["rank"] for event in last.of("open")})
    verdict.compared, verdict.differences = comparison.equal, comparison.differences
    verdict.notes += comparison.remarks
    restarts = _read_restarts(killed.lives)
    verdict.notes += [*describe_restarts(restarts), *_find_unreached(last)]
    verdict.advice = remembering = lines_of(restarts)
    verdict.starts_over = list(dict.fromkeys(map(name_of, restarts)))
    if comparison.differences:
        verdict.outcome = Outcome.NOT_EXACT
        first = comparison.differences[0]
        shown = replace(first, detail="") if first.kind == "recheck" else first  # its detail is a paragraph
        verdict.headline = f"The script does not resume exactly: {shown}."
        verdict.notes = [note for note in verdict.notes if not first.detail or first.detail not in note]
        verdict.advice = advise(comparison.differences, framework, remembering)
    else:
        equal = f"its first {count(verdict.units, 'unit')} with {count(len(kills.kills), 'kill')} equal those without"
        over = verdict.starts_over
        verdict.headline = f"The script resumes exactly: {equal}."
        if over:
            verdict.headline = (
                f"{equal.capitalize()}, but {listed(over)} {'starts' if len(over) == 1 else 'start'} over at each start."
            )
    return verdict


def _find_unreached(life: Life) -> list[str]:
    """Return a note if the units were too few for the end of an epoch."""
    places = [unit for unit in life.units if "epoch" in unit]
    if not places or places[-1]["epoch"] > places[0]["epoch"]:
        return []
    batches = places[-1].get("batches")
    more = f"--units {batches + _BEHIND_EPOCH} (an epoch has {batches:,} batches)" if batches else "more --units"
    return [
        "no epoch came to its end, so what the script does there (a validation, a scheduler, a file) was not rehearsed. Give "
        f"{more} for that"
    ]


class _Comparison:
    """Comparison of two arms.

    Attributes:
        differences: what differs, the state first.
        remarks: what could not be compared, or differs in a way that does not count.
        equal: what is equal.
    """

    def __init__(self, twin: Arm, killed: Arm, control: Arm | None) -> None:
        ignored = find_unsteady(twin.runs, control.runs) if control is not None else ()
        runs = compare_runs(twin.runs, killed.runs, ignored)
        printed = compare_printed(twin.lives[-1], None if control is None else control.lives[-1], killed.lives)
        ours, theirs = twin.place.files(), killed.place.files()
        files, self.remarks = compare_files(ours, None if control is None else control.place.files(), theirs)
        self.differences: list[Difference] = [
            *_find_rechecks(killed.lives),
            *runs,
            *([] if printed is None else [printed]),
            *files,
        ]
        names = merge_indices(name for _, name in sorted(set(ignored)))
        self.remarks += [f"not compared, because it differs between two starts: {name}" for name in names]
        self.equal = []
        if not runs:
            self.equal.append("each record of the log, weights, optimizer state, random states, data position, tracked state")
        if printed is None and has_printed(twin.lives[-1]):
            self.equal.append("printed lines")
        if ours and not files:
            self.equal.append(count(len(ours), "written file"))


def merge_indices(names: Iterable[str]) -> list[str]:
    """Return names of values, with one name for those that differ in their indices only: `times[*][2]`."""
    merged: dict[str, list[str]] = {}
    for name in names:
        merged.setdefault(_INDEX.sub("[*]", name), []).append(name)
    found = []
    for group in merged.values():
        parts = [_INDEX.split(name) for name in group]
        indices = zip(*(_INDEX.findall(name) for name in group), strict=True)
        same = [index[0] if len(set(index)) == 1 else "[*]" for index in indices]
        found.append("".join(text for pair in zip_longest(parts[0], same, fillvalue="") for text in pair))
    return found


def _find_rechecks(lives: Sequence[Life]) -> list[Difference]:
    """Return a difference if a unit that was computed again after a kill was not the recorded one."""
    for life in lives:
        for report in life.reports:
            if report["recheck"] == "different":
                note = next((_text_of(note) for note in report["notes"] if note["code"] == "different"), "")
                return [Difference("recheck", "the unit before a kill, computed again, differs from its record", note)]
    return []


def _require_steady(twin: Arm, control: Arm) -> None:
    """Demand that a second run without a kill trains the same way.

    Raises:
        NotJudged: it does not.
    """
    last = control.lives[-1]
    if last.ending == "exited" and (last.code != 0 or last.steps < twin.lives[-1].steps):
        raise NotJudged(
            f"Started a second time without a kill, the script does not come as far: {describe_end(last)}.", *last_errors(last)
        )
    if any(kind in ESSENTIAL for kind, _ in find_unsteady(twin.runs, control.runs)):
        raise NotJudged(
            "The script does not repeat itself even without a kill, so it cannot be judged.",
            *map(str, compare_runs(twin.runs, control.runs)[:3]),
            "it was started twice from the same first weights. Usual causes: data or random numbers without a seed before the "
            "loop, data-loader workers, threads or kernels that round differently each time",
        )


def _judge_failure(killed: Arm, kills: Killed) -> Verdict:
    """Judge a script that ends before it has come as far as the twin."""
    life = kills.failure
    assert life is not None
    verdict = _begin_verdict(kills, killed.lives)
    verdict.outcome = Outcome.NOT_EXACT
    after = f"started again after {count(len(kills.kills), 'kill')}, " if kills.kills else "started a second time, "
    where = f"at step {life.steps}" if life.of("unit") else "before its next unit"
    verdict.headline = f"The script does not resume: {after}it ends {where} ({describe_end(life)})."
    verdict.notes = [*last_errors(life), *verdict.notes]
    return verdict


def _begin_verdict(kills: Killed, lives: Sequence[Life]) -> Verdict:
    notes = [f"report of the recovery: {note}" for note in _read_notes(lives)]
    return Verdict(Outcome.EXACT, "", is_wrapped=True, kills=kills.kills, notes=notes)


def _read_notes(lives: Sequence[Life]) -> list[str]:
    """Return the notes of the reports, each once, except those on what starts over."""
    reports = [report for life in lives for report in life.reports]
    found = [note for report in reports for note in report["notes"] if note["code"] != "starts-over"]
    return list(dict.fromkeys(map(_text_of, found)))


def _text_of(note: dict[str, Any]) -> str:
    return str(Note(**note))


def _read_restarts(lives: Sequence[Life]) -> list[Restart]:
    """Return the values of the script that start over, each once."""
    found = [one for life in lives for report in life.reports for one in report["restarts"]]
    return list(dict.fromkeys(Restart(**{**one, "note": None}) for one in found))


_SOURCE_BYTES_MAX = 1 << 20
_LAST: dict[Kind, int] = {"printed": 1, "numbers in a file": 2, "file": 3}
_WRAPPED = re.compile(r"\btranlogs(_torch|_keras)?\b")

_REMEMBER = (
    "state = optimizer.remember(NAME=VALUE) before recover(), and state.NAME in the loop, for what a unit takes from the one "
    "before it: a counter, a batch fetched ahead, a hidden state, an environment"
)
_COUNT = "epoch.enumerate(), or optimizer.batches(loader, until=STEPS, enumerate=True), for the true number of a batch"
_APPEND = 'open the file with "a", and write what belongs to a batch before the next batch is requested'

_TORCH_LINES: dict[Kind, list[str]] = {
    "recheck": [_REMEMBER, _COUNT],
    "gradients": [_REMEMBER, _COUNT],
    "printed": [_REMEMBER, _COUNT],
    "numbers in a file": [_REMEMBER, _COUNT],
    "random state": ["optimizer.track(generator=generator) for a generator of your own; seed the global ones before recover()"],
    "data position": ["optimizer.track(loader=loader)", "for batch in optimizer.batches(loader, until=STEPS):"],
    "hyper-parameters": ["optimizer.track(scheduler=scheduler)"],
    "buffers": ["LoggedOptimizer(..., model=model) with the module that holds the buffer"],
    "file": [_APPEND],
}
_KERAS_LINES: dict[Kind, list[str]] = {
    "gradients": ["model.fit(DATA, ...) with data that repeat themselves: arrays, a PyDataset, a tf.data pipeline with seeds"],
    "printed": ["keep what is printed in a Keras metric, or in a callback with get_state and set_state"],
    "numbers in a file": ["keep what is written in a Keras metric, or in a callback with get_state and set_state"],
    "file": [_APPEND],
}
_GENERAL: dict[Kind, list[str]] = {
    "tracked state": ["load_state_dict of the object that is named above has to restore all that its state_dict returns"]
}


def read_sources(command: Sequence[str], folder: Path) -> dict[Path, str]:
    """Return the sources of a script: the files that the command line names."""
    found = {}
    names = [word for word in command if word.endswith((".py", ".sh"))]
    modules = [after for word, after in pairwise(command) if word == "-m"]
    names += [module.replace(".", "/") + ending for module in modules for ending in (".py", "/__main__.py")]
    for name in names:
        path = folder / name
        if path.is_file() and path.stat().st_size <= _SOURCE_BYTES_MAX:
            found[path] = path.read_text(errors="replace")
    return found


def mentions_tranlogs(sources: dict[Path, str]) -> bool:
    """Return True if one of the sources, or a module beside it, names TranLogs."""
    if any(_WRAPPED.search(text) for text in sources.values()):
        return True
    for path in {path.parent for path in sources}:
        for near in sorted(path.glob("*.py"))[:100]:
            if near.stat().st_size <= _SOURCE_BYTES_MAX and _WRAPPED.search(near.read_text(errors="replace")):
                name = near.stem
                if any(re.search(rf"\b{re.escape(name)}\b", text) for text in sources.values()):
                    return True
    return False


def advise(differences: Sequence[Difference], framework: str, remembering: Sequence[str] = ()) -> list[str]:
    """Return the lines to add for what differs first. What is printed follows from the state, and files from both.

    Args:
        differences: what differs.
        framework: "torch" or "keras".
        remembering: the lines of the report, which keep the variables that the script's loops carry.
    """
    lines = {**_GENERAL, **(_KERAS_LINES if framework == "keras" else _TORCH_LINES)}
    kinds = sorted((difference.kind for difference in differences), key=lambda kind: _LAST.get(kind, 0))
    found = next((lines[kind] for kind in kinds if kind in lines), [])
    return [*remembering, *(line for line in found if line != _REMEMBER or not remembering)]


def suggest_wrapping(sources: dict[Path, str]) -> list[str]:
    """Return the lines that make a script resume, guessed from what it imports."""
    text = "\n".join(sources.values())

    def imports(name: str) -> bool:
        return bool(re.search(rf"^\s*(import|from)\s+{name}\b", text, re.MULTILINE))

    if imports("transformers"):
        return [
            "from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback",
            'Trainer(..., callbacks=[TranLogsTrainerCallback("runs/NAME")])',
        ]
    if imports("lightning") or imports("pytorch_lightning"):
        return [
            "from tranlogs_torch.trainers.lightning import TranLogsLightningCallback",
            'Trainer(..., callbacks=[TranLogsLightningCallback("runs/NAME")])',
        ]
    if imports("accelerate"):
        return [
            "from tranlogs_torch.trainers.accelerate import log_prepared",
            'log = log_prepared(accelerator, "runs/NAME", model, optimizer, loader)  # after accelerator.prepare(...)',
            "log.track(scheduler=scheduler).recover()",
            "for epoch in log.epochs(EPOCHS):  # in place of: for epoch in range(EPOCHS)",
            "    for batch in epoch:           # in place of: for batch in loader",
        ]
    if imports("keras") or imports("tensorflow"):
        return [
            "from tranlogs_keras import TranLogsCallback",
            'model.fit(..., callbacks=[TranLogsCallback("runs/NAME")])',
        ]
    return [
        "from tranlogs_torch import LoggedOptimizer",
        'optimizer = LoggedOptimizer(optimizer, run="runs/NAME", model=model)',
        "optimizer.track(scheduler=scheduler, loader=loader)  # what has state_dict",
        "optimizer.recover()",
        "for epoch in optimizer.epochs(EPOCHS):  # in place of: for epoch in range(EPOCHS)",
        "    for batch in epoch:                 # in place of: for batch in loader; docs/your_loop.md has other loops",
    ]
