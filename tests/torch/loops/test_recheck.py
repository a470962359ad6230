"""The newest unit before a crash is computed again: equal where the run has all of the loop's state, and named where not."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.damage import tensor_span
from tests.torch import scripts
from tests.torch.lab import Attempt, Outcome, differences, in_child, uninterrupted
from tests.torch.scripts import Script
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import RecordKind
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.training.recheck_messages import PENDING
from tranlogs_torch.loops.unit_recheck import UnitOutcome, conclude

pytestmark = pytest.mark.crash


def resume(script: Script, run: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any], Outcome]:
    """Start a script once more, in this process; return the report at its begin and at its end, and the outcome."""
    attempt = Attempt(run, **options)
    script(attempt)
    return asdict(attempt.reports[0]), asdict(attempt.final_report()), attempt.outcome()


def kill(script: Script, run: Path, tick: int, **options: Any) -> None:
    status = in_child(lambda: script(Attempt(run, tick, **options)))
    assert status == -signal.SIGKILL, f"the child was to die at tick {tick}; its exit status is {status}"


def last_entry(run: Path, kind: RecordKind) -> Any:
    """Return the newest record that is a step or a boundary, and the file that holds it."""
    segments = sorted(read_facts(run / "rank0").segments, key=lambda one: one.row.ordinal)
    found = [
        (segment, location)
        for segment in segments
        for location in segment.locations
        if (location.head.kind.is_step if kind == RecordKind.STEP else location.head.kind.is_boundary)
    ]
    segment, location = found[-1]
    with SegmentReader(segment.path) as reader:
        return reader.decode(location), segment.path


def test_a_recheck_that_is_killed_is_done_again(tmp_path: Path) -> None:
    """Each of these processes dies in the unit that it computes again, or in the one behind."""
    script, run = scripts.epochs, tmp_path / "run"
    kill(script, run, 9)
    before = last_entry(run, RecordKind.BOUNDARY)[0].head
    for _ in range(2):
        kill(script, run, 1)
        assert last_entry(run, RecordKind.BOUNDARY)[0].head == before, "nothing is logged while a unit is computed again"
    kill(script, run, 2)
    begun, ended, outcome = resume(script, run)
    assert (begun["step"], begun["recheck"], begun["exact"]) == (before.step - 1, "pending", None)
    assert PENDING in begun["notes"]
    assert (ended["recheck"], ended["exact"], ended["notes"]) == ("equal", True, ())
    assert ended["rechecked"] >= 1
    assert differences(outcome, uninterrupted(script).outcome()) == []


@pytest.mark.parametrize("kind", [RecordKind.STEP, RecordKind.BOUNDARY])
def test_a_damaged_unit_is_not_compared_with(kind: RecordKind, tmp_path: Path) -> None:
    """Recovery goes back before the damage, and the unit before is computed again."""
    script, run, tick = partial(scripts.batches, fingerprint="full"), tmp_path / "run", 13
    kill(script, run, tick)
    damage_last(run, kind)
    begun, ended, outcome = resume(script, run)
    assert (begun["step"], ended["recheck"], ended["exact"]) == (tick - 3, "equal", True)
    assert any("committed" in note or "damaged" in note or "checksum" in note for note in ended["notes"]), ended["notes"]
    assert differences(outcome, uninterrupted(scripts.batches).outcome()) == []


def damage_last(run: Path, kind: RecordKind) -> None:
    """Overwrite two bytes of the newest record of a kind."""
    entry, path = last_entry(run, kind)
    span = tensor_span(entry, "grad/0.weight") if kind == RecordKind.STEP else (entry.location.description_offset,) * 2
    with path.open("r+b") as file:
        file.seek(span[0])
        file.write(bytes([0x5A, 0xA5]))


def test_the_recorded_state_is_set_back_where_the_unit_differs(tmp_path: Path) -> None:
    """Weights, optimizer, random numbers and the place in the data are those of the record, and scalars are there once."""
    steps: dict[int, Outcome] = {}

    def script(attempt: Attempt, *, rate: float = 0.01) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            attempt.kept = {}
            attempt.keep(model=model, optimizer=optimizer, batch=batch)
            steps.setdefault(optimizer.watermarks["step"] if attempt.run else attempt.ticks, attempt.outcome())
            for group in optimizer.param_groups:
                group["lr"] = rate
            scripts.step(attempt, model, optimizer, batch)
        if attempt.run is not None:
            assert optimizer.scalars["loss"][0] == list(range(1, scripts.TURNS + 1))
        optimizer.close()

    uninterrupted(script)
    right, run = dict(steps), tmp_path / "run"
    kill(script, run, 10)
    steps.clear()
    begun, ended, _ = resume(partial(script, rate=0.02), run)
    assert (begun["step"], ended["recheck"], ended["exact"], ended["step"]) == (8, "different", False, 9)
    assert any("lr of parameter group 0 is 0.02, and 0.01 in the record" in note for note in ended["notes"])
    found = {path for path in differences(steps[9], right[9]) if "['lr']" not in path}
    assert found == set()


@pytest.mark.parametrize("ends", ["finished", "switched off", "no unit", "a step of the user's"])
def test_nothing_is_computed_again(ends: str, tmp_path: Path) -> None:
    """At the end of the script, where it is not wanted, where the log does not hold a whole unit, and at a given step."""
    script, run = scripts.batches, tmp_path / "run"
    if ends == "finished":
        assert in_child(lambda: script(Attempt(run))) == 0
    else:
        kill(script, run, 1 if ends == "no unit" else 10)
    attempt = Attempt(run, recheck=False if ends == "switched off" else None)
    attempt.recover_at = 5 if ends == "a step of the user's" else None
    script(attempt)
    report = attempt.final_report()
    assert report.recheck == attempt.reports[0].recheck == ""
    assert report.exact is True
    assert report.step == {"finished": scripts.TURNS, "no unit": 0, "a step of the user's": 5}.get(ends, 9)


def test_a_unit_that_is_known_to_come_out_otherwise_is_not_computed_again(tmp_path: Path) -> None:
    """The state of the optimizer was not logged."""
    script, run = partial(scripts.batches, log="weights", optimizer_state=False), tmp_path / "run"
    kill(script, run, 10)
    begun, ended, _ = resume(script, run)
    assert (begun["step"], ended["recheck"], ended["exact"]) == (9, "", None)
    assert any("was not logged" in note for note in ended["notes"])


@pytest.mark.parametrize("declared", ["after recover()", ""])
def test_a_measured_time_is_left_out_if_it_is_declared(
    declared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        remember = optimizer.remember_times if declared else optimizer.remember
        state = None if declared else remember(elapsed=0.0)
        attempt.start(optimizer)
        state = state or remember(elapsed=0.0)
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            start = time.perf_counter()
            scripts.step(attempt, model, optimizer, batch)
            state.elapsed += time.perf_counter() - start
        attempt.keep(elapsed=state.elapsed)
        optimizer.close()

    kill(script, run, 10)
    _, ended, outcome = resume(script, run)
    if declared:
        assert (ended["recheck"], ended["exact"]) == ("equal", True), ended
        assert "all that the run keeps (without the times elapsed) are equal" in capsys.readouterr().err
        assert float(outcome["['elapsed']"][1]) > 0
    else:
        assert (ended["recheck"], ended["exact"]) == ("different", False)
        assert any("give it to optimizer.remember_times(elapsed=...)" in note for note in ended["notes"]), ended["notes"]


def test_a_script_that_does_not_train_is_told_that_its_state_is_one_unit_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    kill(scripts.batches, run, 10)

    def evaluate(attempt: Attempt) -> None:
        model, optimizer, _ = scripts.begin(attempt)
        attempt.start(optimizer)
        attempt.keep(model=model)
        optimizer.close()

    begun, ended, _ = resume(evaluate, run)
    assert (begun["step"], ended["recheck"], ended["exact"]) == (8, "pending", None)
    assert [record.getMessage() for record in caplog.records if "had computed step 9 again" in record.getMessage()]
    _, ended, _ = resume(scripts.batches, run)
    assert (ended["step"], ended["recheck"], ended["exact"]) == (8, "equal", True)


def test_a_loop_goes_on_where_the_state_was_set_back_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """The unit that is computed again runs into the next epoch, and its record ends with the last batch of one."""
    run = tmp_path / "run"

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        for number, batch in enumerate(optimizer.batches(loader, until=scripts.TURNS), start=1):  # it starts anew
            (scripts.loss(model, batch) / 3).backward()
            attempt.tick()
            if number % 3 == 0 or number == scripts.BATCHES:
                optimizer.step()
                optimizer.zero_grad()
        attempt.keep(batch=optimizer.training_run.auxiliary.read_data()["loader"]["taken"])
        optimizer.close()

    kill(script, run, scripts.BATCHES + 1)
    _, _, outcome = resume(script, run)
    assert outcome["['batch']"] == ("int", str(scripts.TURNS))


def test_change_of_the_optimizer_that_is_made_twice_is_told(tmp_path: Path) -> None:
    """What cannot be undone is not passed over in silence."""

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        attempt.start(optimizer)
        for epoch in optimizer.epochs(scripts.EPOCHS, loader):
            optimizer.state.clear()
            for batch in epoch:
                scripts.step(attempt, model, optimizer, batch)
        optimizer.close()

    kill(script, tmp_path / "run", 8)
    _, ended, _ = resume(script, tmp_path / "run")
    assert ended["exact"] is False
    assert any("epoch.batch == 0" in note for note in ended["notes"])


def test_an_array_that_alone_comes_out_otherwise_is_named(tmp_path: Path) -> None:
    """Weights, settings and all plain values are equal; the bytes of a remembered array depend on the process."""

    def script(attempt: Attempt, *, drawn: float) -> None:
        model, optimizer, loader = scripts.begin(attempt)
        state = optimizer.remember(noise=np.zeros(4096))
        attempt.start(optimizer)
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            scripts.step(attempt, model, optimizer, batch)
            state.noise = np.full(4096, drawn)
        optimizer.close()

    kill(partial(script, drawn=1.0), tmp_path / "run", 8)
    _, ended, _ = resume(partial(script, drawn=2.0), tmp_path / "run")
    assert (ended["recheck"], ended["exact"]) == ("different", False)
    assert any("state.noise" in note for note in ended["notes"]), ended["notes"]


class Counter:
    """An object with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def counting(attempt: Attempt, *, remembers: tuple[str, ...] = (), tracks: bool = False) -> None:
    model, optimizer, loader = scripts.begin(attempt)
    state = optimizer.remember(**dict.fromkeys(remembers, 0)) if remembers else None
    counter = Counter()
    attempt.start(optimizer, **({"counter": counter} if tracks else {}))
    for epoch in optimizer.epochs(scripts.EPOCHS, loader):
        for batch in epoch:
            scripts.step(attempt, model, optimizer, batch)
            counter.count += 1
            for name in remembers:
                setattr(state, name, getattr(state, name) + 1)
    attempt.keep(model=model)
    optimizer.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"remembers": ("best",), "tracks": True}),
        ({"remembers": ("best", "bad"), "tracks": True}, {"remembers": ("best",)}),
    ],
    ids=["more", "less"],
)
def test_a_name_that_only_the_run_has_or_only_the_script_makes_no_resume_wrong(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    """As a note of the report advises: a script begins to track or to remember while its run goes on, or ends that."""
    run = tmp_path / "run"
    kill(partial(counting, **before), run, 8)
    for die_at in (2, 4):  # in the first unit that the script with the other names logs, and later
        kill(partial(counting, **after), run, die_at)
    _, ended, _ = resume(partial(counting, **after), run)
    assert (ended["recheck"], ended["exact"]) == ("equal", True), ended["notes"]


UNDERWAY, EQUAL = UnitOutcome(False), UnitOutcome(True)
ROUNDED, WRONG = UnitOutcome(True, "it rounds otherwise", False), UnitOutcome(False, "it has another batch", True)
MANY = [EQUAL, *[UnitOutcome(True, f"differs {n}", n == 3) for n in range(1, 6)]]
UNFINISHED = "rank 1 has not come to the end of its unit"


@pytest.mark.parametrize(
    ("ranks", "kind", "texts", "is_wrong"),
    [
        ([EQUAL] * 3, "equal", (), False),
        ([EQUAL, WRONG], "different", ("rank 1: it has another batch",), True),
        ([ROUNDED, EQUAL], "different", ("rank 0: it rounds otherwise",), False),
        ([WRONG] * 4, "different", ("it has another batch",), True),
        (MANY, "different", ("rank 1: differs 1", "rank 2: differs 2", "3 more ranks differ from their records, too"), True),
        ([EQUAL, UNDERWAY], "different", (UNFINISHED,), None),
    ],
)
def test_what_follows_for_all_ranks(ranks: list[UnitOutcome], kind: str, texts: tuple[str, ...], is_wrong: bool | None) -> None:
    verdict = conclude(ranks)
    assert verdict is not None
    assert verdict.kind == kind
    assert len(verdict.notes) == len(texts)
    assert all(text in found for text, found in zip(texts, verdict.notes, strict=True))
    assert is_wrong is None or verdict.is_wrong is is_wrong


def test_nothing_is_concluded_in_the_middle_of_a_unit() -> None:
    assert conclude([UNDERWAY, UNDERWAY]) is None
