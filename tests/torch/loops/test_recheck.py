"""The newest unit before a crash is computed again: equal where the run has all of the loop's state, and named where not."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import campaign
from tests.support.damage import tensor_span
from tests.torch.lab import Attempt, Outcome, differences, in_child, uninterrupted
from tests.torch.loops import recheck_scripts as scripts
from tests.torch.loops.recheck_scripts import Script
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import EntryKind
from tranlogs.recovery import read_facts
from tranlogs.training import PENDING

pytestmark = pytest.mark.crash

UNTRACKED: dict[str, Script] = {
    script.__name__: partial(script, tracks=False)
    for script in (scripts.gan, scripts.prefetched, scripts.rated, scripts.episodes, scripts.forward_forward)
}
VARIABLES = {  # that start over
    "gan": ("state.number",),
    "prefetched": ("state.number", "state.x", "state.y"),
    "rated": ("state.rate",),
    "episodes": ("state.place", "state.reward"),
    "forward_forward": ("state.layer", "state.turn"),
}
OUTSIDE = ("prefetched", "forward_forward")  # take no loop of the optimizer, so that the resume is not verified
KILLS = campaign.rounds(50) if campaign.is_soak() else 5
RUNS = campaign.rounds(50) if campaign.is_soak() else 1  # of tests that kill or damage a recheck


@pytest.fixture(autouse=True)
def rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")


def resume(script: Script, run: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any], Outcome]:
    """Start a script once more, in this process; return the report at its begin and at its end, and the outcome."""
    attempt = Attempt(run, **options)
    script(attempt)
    return asdict(attempt.reports[0]), asdict(attempt.final_report()), attempt.outcome()


def kill(script: Script, run: Path, tick: int, **options: Any) -> None:
    status = in_child(lambda: script(Attempt(run, tick, **options)))
    assert status == -signal.SIGKILL, f"the child was to die at tick {tick}; its exit status is {status}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", scripts.PROVEN)
def test_a_loop_whose_state_is_in_the_run_is_proven_at_every_kill(name: str, tmp_path: Path) -> None:
    script = scripts.PROVEN[name]
    right = uninterrupted(script)
    chance = campaign.dice(name)
    for number in range(KILLS):
        tick = chance.randrange(3, right.ticks + 1)
        run = tmp_path / str(number)
        kill(script, run, tick)
        begun, ended, outcome = resume(script, run)
        where = f"killed at {tick}"
        assert (begun["recheck"], begun["exact"]) == ("pending", None), where
        assert PENDING in begun["notes"], where
        assert (ended["recheck"], ended["exact"]) == ("equal", True), f"{where}: {ended}"
        assert not ended["notes"], where
        assert ended["rechecked"] >= 1, where
        assert differences(outcome, right.outcome()) == [], where
        shutil.rmtree(run)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", UNTRACKED)
def test_a_loop_whose_state_is_not_in_the_run_is_named_at_every_kill(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = UNTRACKED[name]
    right = uninterrupted(script)
    chance = campaign.dice(name, "untracked")
    has_differed = False
    for number in range(KILLS):
        tick = chance.randrange(right.ticks // 2, right.ticks + 1)
        run = tmp_path / str(number)
        kill(script, run, tick)
        caplog.clear()
        _, ended, outcome = resume(script, run)
        has_differed |= bool(differences(outcome, right.outcome()))
        said = " ".join(note.partition(" start")[0] for note in ended["notes"] if "over at each start" in note)
        assert all(variable in said for variable in VARIABLES[name]), f"killed at {tick}: {ended}"
        shutil.rmtree(run)
        if ended["recheck"] == "equal":  # a counter that begins anew where it would have come to a multiple: it is in step
            assert (
                differences(outcome, right.outcome()) == [] or ended["exact"] is None
            )  # or how many turns are left is not known
            continue
        exact = None if name in OUTSIDE else False
        assert (ended["recheck"], ended["exact"]) == ("different", exact), f"killed at {tick}: {ended}"
        told = [record.getMessage() for record in caplog.records if "was computed again" in record.getMessage()]
        assert len(told) == 1, told
        advice = ("optimizer.track(", "optimizer.remember(")
        assert any("was computed again" in note and any(word in note for word in advice) for note in ended["notes"])
    assert has_differed


def last_entry(run: Path, kind: EntryKind) -> Any:
    """Return the newest record that is a step or a boundary, and the file that holds it."""
    segments = sorted(read_facts(run / "rank0").segments, key=lambda one: one.row.ordinal)
    found = [
        (segment, location)
        for segment in segments
        for location in segment.locations
        if (location.head.kind.is_step if kind == EntryKind.STEP else location.head.kind.is_boundary)
    ]
    segment, location = found[-1]
    with SegmentReader(segment.path) as reader:
        return reader.decode(location), segment.path


def test_a_recheck_that_is_killed_is_done_again(tmp_path: Path) -> None:
    """Each of these processes dies in the unit that it computes again, or in the one behind."""
    script = scripts.epochs
    right, chance = uninterrupted(script), campaign.dice("killed")
    for number in range(RUNS):
        run, tick = tmp_path / str(number), chance.choice([3, 4, 8, 9, 10, 14, 15, 16])  # amid an epoch
        kill(script, run, tick)
        before = last_entry(run, EntryKind.BOUNDARY)[0].head
        for _ in range(3):
            kill(script, run, 1)
            assert last_entry(run, EntryKind.BOUNDARY)[0].head == before, "nothing is logged while a unit is computed again"
        kill(script, run, 2)
        begun, ended, outcome = resume(script, run)
        assert begun["step"] == before.step - 1, tick
        assert (ended["recheck"], ended["exact"]) == ("equal", True), tick
        assert differences(outcome, right.outcome()) == [], tick
        shutil.rmtree(run)


@pytest.mark.parametrize("kind", [EntryKind.STEP, EntryKind.BOUNDARY])
def test_a_damaged_unit_is_not_compared_with(kind: EntryKind, tmp_path: Path) -> None:
    """Recovery goes back before the damage, and the unit before is computed again."""
    script = partial(scripts.batches, fingerprint="full")
    right, chance = uninterrupted(scripts.batches), campaign.dice("damaged", kind)
    after_checkpoint = 9  # the newest checkpoint lies directly before the damaged unit
    for number in range(1 + RUNS):
        run, tick = tmp_path / str(number), chance.randrange(5, scripts.TURNS) if number else after_checkpoint
        kill(script, run, tick)
        damage_last(run, kind)
        begun, ended, outcome = resume(script, run)
        assert (begun["step"], ended["recheck"], ended["exact"]) == (tick - 3, "equal", True), tick
        assert any("committed" in note or "damaged" in note or "checksum" in note for note in ended["notes"]), ended["notes"]
        assert differences(outcome, right.outcome()) == [], tick
        shutil.rmtree(run)


def damage_last(run: Path, kind: EntryKind) -> None:
    """Overwrite two bytes of the newest record of a kind."""
    entry, path = last_entry(run, kind)
    span = tensor_span(entry, "grad/0.weight") if kind == EntryKind.STEP else (entry.location.description_offset,) * 2
    with path.open("r+b") as file:
        file.seek(span[0])
        file.write(bytes([0x5A, 0xA5]))


def test_the_recorded_state_is_set_back_where_the_unit_differs(tmp_path: Path) -> None:
    """Weights, optimizer, random numbers and the place in the data are those of the record, and scalars are there once."""
    steps: dict[int, Outcome] = {}

    def script(attempt: Attempt, *, rate: float = 0.01) -> None:
        model, optimizer, loader = scripts._begin(attempt)
        attempt.start(optimizer)
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            attempt.kept = {}
            attempt.keep(model=model, optimizer=optimizer, batch=batch)
            steps.setdefault(optimizer.watermarks["step"] if attempt.run else attempt.ticks, attempt.outcome())
            for group in optimizer.param_groups:
                group["lr"] = rate
            scripts._step(attempt, model, optimizer, batch)
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


def test_a_deviation_is_told_by_later_processes_too(tmp_path: Path) -> None:
    script, run = UNTRACKED["rated"], tmp_path / "run"
    kill(script, run, 9)
    kill(script, run, 4)
    _, ended, _ = resume(script, run)
    assert ended["exact"] is False
    _, again, _ = resume(script, run)
    assert (again["recheck"], again["exact"]) == ("", False)
    assert any("was computed again" in note for note in again["notes"])


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


@pytest.mark.parametrize("declared", ["before recover()", "after recover()", ""])
def test_a_measured_time_is_left_out_if_it_is_declared(
    declared: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts._begin(attempt)
        remember = optimizer.remember_times if declared else optimizer.remember
        state = remember(elapsed=0.0) if declared != "after recover()" else None
        attempt.start(optimizer)
        state = state or remember(elapsed=0.0)
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            start = time.perf_counter()
            scripts._step(attempt, model, optimizer, batch)
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


def test_an_exception_is_no_end(tmp_path: Path) -> None:
    """The loop is left amid a turn, as by a lack of memory: the turn before is computed again."""

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts._begin(attempt)
        attempt.start(optimizer)
        try:
            for batch in optimizer.batches(loader, until=scripts.TURNS):
                scripts._step(attempt, model, optimizer, batch)
                if attempt.ticks == attempt.die_at:
                    raise MemoryError
        finally:
            optimizer.close()

    attempt = Attempt(tmp_path / "run", die_at=0)
    attempt.tick = lambda: setattr(attempt, "ticks", attempt.ticks + 1)  # type: ignore[method-assign]
    attempt.die_at = 7
    with pytest.raises(MemoryError):
        script(attempt)
    _, ended, _ = resume(script, tmp_path / "run")
    assert (ended["recheck"], ended["exact"]) == ("equal", True)


def test_a_script_that_does_not_train_is_told_that_its_state_is_one_unit_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    kill(scripts.batches, run, 10)

    def evaluate(attempt: Attempt) -> None:
        model, optimizer, _ = scripts._begin(attempt)
        attempt.start(optimizer)
        attempt.keep(model=model)
        optimizer.close()

    begun, ended, _ = resume(evaluate, run)
    assert (begun["step"], ended["recheck"], ended["exact"]) == (8, "pending", None)
    assert [record.getMessage() for record in caplog.records if "had computed step 9 again" in record.getMessage()]
    _, ended, _ = resume(scripts.batches, run)
    assert (ended["step"], ended["recheck"], ended["exact"]) == (8, "equal", True)


@pytest.mark.parametrize("what", ["weight decay", "weights", "dropout"])
def test_what_the_script_changes_on_purpose_holds_and_is_not_undone(what: str, tmp_path: Path) -> None:
    """Nothing is computed again: the unit would come out otherwise, and the change would be set back with it."""
    run = tmp_path / "run"

    def script(attempt: Attempt, *, changes: bool) -> None:
        model, optimizer, loader = scripts._begin(attempt)
        if changes and what == "dropout":
            model[2].p = 0.5
        attempt.start(optimizer)
        if changes and what == "weight decay":
            optimizer.param_groups[0]["weight_decay"] = 0.5
        elif changes and what == "weights":
            torch.nn.init.constant_(model[4].weight, 0.25)
        weights = []
        for batch in optimizer.batches(loader, until=scripts.TURNS):
            weights.append(model[4].weight.flatten().tolist())
            scripts._step(attempt, model, optimizer, batch)
        attempt.keep(decay=optimizer.param_groups[0]["weight_decay"], weights=weights[0])
        optimizer.close()

    kill(partial(script, changes=False), run, 10)
    attempt = Attempt(run)
    script(attempt, changes=True)
    report = attempt.final_report()
    assert (report.recheck, report.exact, report.step) == ("", None, 9), report
    if what == "weight decay":
        assert attempt.kept["decay"] == 0.5
    elif what == "weights":
        assert set(attempt.kept["weights"]) == {0.25}


def test_a_loop_goes_on_where_the_state_was_set_back_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """The unit that is computed again runs into the next epoch, and its record ends with the last batch of one."""
    run = tmp_path / "run"

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts._begin(attempt)
        attempt.start(optimizer)
        for number, batch in enumerate(optimizer.batches(loader, until=scripts.TURNS), start=1):  # it starts anew
            (scripts._loss(model, batch) / 3).backward()
            attempt.tick()
            if number % 3 == 0 or number == scripts.BATCHES:
                optimizer.step()
                optimizer.zero_grad()
        attempt.keep(batch=optimizer.training_run.auxiliary.read_data()["loader"]["taken"])
        optimizer.close()

    kill(script, run, scripts.BATCHES + 1)
    _, _, outcome = resume(script, run)
    assert outcome["['batch']"] == ("int", str(scripts.TURNS))


def test_a_resume_without_a_unit_to_compute_again_is_not_called_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.recovery.history._UNITS_MAX", 0)
    run = tmp_path / "run"

    def script(attempt: Attempt) -> None:
        model, optimizer, loader = scripts._begin(attempt)
        attempt.start(optimizer)
        for number, batch in optimizer.batches(loader, until=scripts.TURNS, enumerate=True):
            attempt.tick()
            if number < 6:
                scripts._step(attempt, model, optimizer, batch)
        optimizer.close()

    kill(script, run, 16)
    attempt = Attempt(run)
    script(attempt)
    report = attempt.final_report()
    assert (report.recheck, report.exact) == ("", None)
    assert any("is not proven" in note for note in report.notes)
