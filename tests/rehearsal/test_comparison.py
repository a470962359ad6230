"""What differs between two arms of a rehearsal: runs of this process, files, printed lines; what the lines alone tell."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tranlogs.rehearsal.compare_output import Noise, compare_files, find_other_line, parse, read_archive, split_lines
from tranlogs.rehearsal.compare_runs import Difference, compare_runs, copy_start, find_differences, find_unsteady
from tranlogs.rehearsal.judging import advise, mentions_tranlogs, merge_indices, suggest_wrapping
from tranlogs.rehearsal.processes import Life
from tranlogs.rehearsal.rehearse import judge_loss
from tranlogs_torch import LoggedOptimizer

STEPS = 6


@dataclass
class Counter:
    """Tracked state."""

    value: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


Change = Callable[[int, torch.Tensor, Any, Counter], None]


def train(arm: Path, change: Change = lambda step, data, optimizer, counter: None, seed: int = 0) -> None:
    """Train a run of some steps; `change` is called within each step."""
    torch.manual_seed(seed)
    model, counter = nn.Linear(3, 1), Counter()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "keep": 100, "checkpoint_every": STEPS}
    with LoggedOptimizer(inner, arm / "run", model, **options) as optimizer:
        optimizer.track(counter=counter).recover()
        for step in optimizer.steps(STEPS, stateless=True):
            data = torch.full((2, 3), float(step))
            change(step + 1, data, optimizer, counter)
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.training_run.journal.wait_checkpoint()


def change_data(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    if step == 3:
        data += 1


def change_rate(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    optimizer.param_groups[0]["lr"] = 0.1 if step < 4 else 0.05


def change_counter(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    counter.value = step if step < 5 else 0


def change_random_state(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    if step == 2:
        torch.rand(1)


@pytest.mark.parametrize(
    ("change", "kind", "what", "step"),
    [
        (change_data, "gradients", "weight", 3),
        (change_rate, "hyper-parameters", "hyper[0].lr", 4),
        (change_counter, "tracked state", "tracked.counter.value", 1),
        (change_random_state, "random state", "rng.torch", 2),
    ],
)
def test_first_difference_is_named_with_its_step(change: Change, kind: str, what: str, step: int, tmp_path: Path) -> None:
    train(tmp_path / "twin")
    train(tmp_path / "other", change)
    assert compare_runs(tmp_path / "twin", tmp_path / "twin") == []
    first = compare_runs(tmp_path / "twin", tmp_path / "other")[0]
    assert (first.kind, first.what.rstrip("0123456789[]"), first.step) == (kind, what, step)


def test_what_differs_without_a_kill_can_be_left_out(tmp_path: Path) -> None:
    train(tmp_path / "twin")
    train(tmp_path / "control", change_counter)
    ignored = find_unsteady(tmp_path / "twin", tmp_path / "control")
    assert ignored == {("tracked state", "tracked.counter.value")}
    assert compare_runs(tmp_path / "twin", tmp_path / "control", ignored) == []


def test_last_state_is_compared_tensor_by_tensor(tmp_path: Path) -> None:
    train(tmp_path / "twin")
    train(tmp_path / "other", change_data)
    last = compare_runs(tmp_path / "twin", tmp_path / "other")[-1]
    assert (last.kind, last.what, last.step) == ("weights", "weight", STEPS)
    assert "apart" in last.detail


def test_copy_of_the_start_begins_with_the_same_weights(tmp_path: Path) -> None:
    train(tmp_path / "twin")
    assert copy_start(tmp_path / "twin", tmp_path / "copy")
    train(tmp_path / "copy", seed=7)
    assert compare_runs(tmp_path / "twin", tmp_path / "copy") == []


def test_differences_of_nested_values_are_found_by_their_paths() -> None:
    a = {"x": [1, {"y": 2.0}], "z": b"1", "same": float("nan")}
    b = {"x": [1, {"y": 3.0}], "w": None, "same": float("nan")}
    assert list(find_differences(a, b)) == [
        ("x[1].y", "3.0 instead of 2.0"),
        ("z", "missing"),
        ("w", "not there without a kill"),
    ]
    assert str(Difference("weights", "w", "up to 1 apart", 3)) == "weights at step 3: w (up to 1 apart)"


Write = Callable[[str, dict[str, bytes]], dict[str, Path]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the files of one arm."""

    def call(arm: str, contents: dict[str, bytes]) -> dict[str, Path]:
        (tmp_path / arm).mkdir()
        for name, content in contents.items():
            (tmp_path / arm / name).write_bytes(content)
        return {name: tmp_path / arm / name for name in contents}

    return call


def archive(value: Any, stored: bytes = b"12345678") -> bytes:
    """A file such as `torch.save` writes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(value))
        file.writestr("archive/data/0", stored)
    return content.getvalue()


@pytest.mark.parametrize(
    ("twin", "killed", "difference"),
    [
        ({"a.csv": b"1\n2\n3\n"}, {"a.csv": b"1\n2\n3\n"}, None),
        ({"a.csv": b"1\n2\n3\n"}, {"a.csv": b"2\n3\n"}, "1 of 3 lines missing, the first is '1'"),
        ({"a.csv": b"1\n2\n"}, {"a.csv": b"1\n7\n2\n"}, "1 line not there without a kill, the first is '7'"),
        ({"a.csv": b"1\n"}, {}, "is missing"),
        ({}, {"b.csv": b"1\n"}, "is not there without a kill"),
        ({"a.bin": b"\0\1"}, {"a.bin": b"\0\2"}, "other bytes"),
        ({"a.bin": b"\0\1"}, {"a.bin": b"\0\1\2"}, "3 bytes instead of 2"),
    ],
)
def test_difference_of_files_is_named(
    twin: dict[str, bytes], killed: dict[str, bytes], difference: str | None, write: Write
) -> None:
    found, _ = compare_files(write("twin", twin), None, write("killed", killed))
    assert [one.detail for one in found] == ([] if difference is None else [difference])
    assert {one.what for one in found} <= twin.keys() | killed.keys()


@pytest.mark.parametrize(
    ("killed", "detail"),
    [
        ("turn 1\nturn 2\nturn 1\nturn 2\n", "2 of 4 lines with other numbers: there is no 'turn 3'"),
        ("turn 1\nturn 2\nturn 2\nturn 8\nturn 9\n", "2 of 4 lines with other numbers: 'turn 8' instead of 'turn 3'"),
    ],
)
def test_numbers_that_differ_in_lines_of_which_none_is_missing_are_those_of_the_loop(
    killed: str, detail: str, write: Write
) -> None:
    """A counter that starts over; how the file is opened has nothing to do with it."""
    twin = write("twin", {"log.txt": b"turn 1\nturn 2\nturn 3\nturn 4\n"})
    found, _ = compare_files(twin, None, write("killed", {"log.txt": killed.encode()}))
    assert [(one.kind, one.detail) for one in found] == [("numbers in a file", detail)]
    (line, count) = advise(found, "torch")
    assert "optimizer.remember(" in line
    assert "enumerate=True" in count
    lost, _ = compare_files(twin, None, {"log.txt": write("lost", {"log.txt": b"turn 3\nturn 4\n"})["log.txt"]})
    assert advise([*lost, *found], "torch") == [line, count], "what differs first decides"
    assert 'open the file with "a"' in advise(lost, "torch")[0]
    assert advise(found, "torch", remembering=["state = optimizer.remember(n=0)"])[0] == "state = optimizer.remember(n=0)"


def test_lines_of_the_unit_that_was_killed_may_be_there_twice(write: Write) -> None:
    found, remarks = compare_files(write("twin", {"a.csv": b"1\n2\n3\n"}), None, write("killed", {"a.csv": b"1\n2\n2\n3\n"}))
    assert found == []
    assert remarks == ["a.csv: 1 line more: a unit that was computed again after a kill wrote them again"]


def test_files_that_differ_without_a_kill_are_not_compared(write: Write) -> None:
    twin, control = write("twin", {"a.bin": b"\0\1", "log.1": b"x"}), write("control", {"a.bin": b"\0\2", "log.2": b"x"})
    found, remarks = compare_files(twin, control, write("killed", {"a.bin": b"\0\3", "log.3": b"x", "log.4": b"x"}))
    assert found == []
    assert len(remarks) == 2


def test_archive_is_compared_by_what_it_holds(write: Write) -> None:
    shared = (0.9, 0.999)
    one, other = archive({"a": shared, "b": shared}), archive({"a": (0.9, 0.999), "b": (0.9, float("0.999"))})
    assert one != other, "the same values, but other bytes"
    twin = write("twin", {"x.pt": one, "y.pt": archive({"step": 3}), "z.pt": archive(1)})
    killed = write("killed", {"x.pt": other, "y.pt": archive({"step": 4}), "z.pt": archive(1, b"12345679")})
    found, _ = compare_files(twin, None, killed)
    assert [one.what for one in found] == ["y.pt", "z.pt"]
    assert "4 instead of 3" in found[0].detail
    assert found[1].detail.startswith("data/0")


class Harmful:
    """Its pickle writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_an_archive_is_run(write: Write, tmp_path: Path) -> None:
    files = write("twin", {"x.pt": archive([Harmful(tmp_path / "harm"), OrderedDict(a=1)])})
    assert read_archive(files["x.pt"]) is not None
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("line", "text", "numbers"),
    [
        ("step 3: loss 1.5e-3, lr -0.1", "step #: loss #, lr #", ("3", "1.5e-3", "-0.1")),
        ("loss nan", "loss #", ("nan",)),
        ("epoch 2 took 3.25 s", "epoch # took <time>", ("2",)),
        ("6/6 - 0s - 12ms/step - loss: 2.5", "#/# - <time> - <time> - loss: #", ("6", "6", "2.5")),
        ("2026-11-25 20:38:57,123 INFO loss 7", "<time><time> INFO loss #", ("7",)),
        ("[01:23<04:56, 12.3it/s] 8", "[<time><<time>, <time>] #", ("8",)),
        ("layer conv2d_1 of model-v2", "layer conv2d_1 of model-v2", ()),
    ],
)
def test_line_is_split_into_text_and_numbers_without_times(line: str, text: str, numbers: tuple[str, ...]) -> None:
    assert parse(line) == (text, numbers)


def test_of_a_progress_bar_what_stays_on_a_terminal_counts() -> None:
    assert split_lines(b"\x1b[1m1/2\x1b[0m loss 3\r\b\b2/2 loss 2\r\n\n  done \n1/2 loss 2\r") == ["2/2 loss 2", "done"]


@pytest.mark.parametrize(
    ("expected", "found", "other"),
    [
        (["loss 1"], ["loss 1"], None),
        (["loss 1"], ["loss 2"], "'loss 2' instead of 'loss 1'"),
        (["loss 1", "end"], ["loss 1"], "'end' is missing"),
        (["loss 1"], ["loss 1", "again"], "'again' is not there without a kill"),
        (["took 1.0 s"], ["took 2.0 s"], None),
    ],
)
def test_first_line_that_differs_is_found(expected: list[str], found: list[str], other: str | None) -> None:
    assert find_other_line(expected, found, Noise()) == other


def test_numbers_that_differ_without_a_kill_do_not_count() -> None:
    noise = Noise()
    noise.learn(["process 71: loss 1.0", "free memory 12"], ["process 82: loss 1.0", "free memory 12"])
    assert find_other_line(["process 71: loss 2.0"], ["process 93: loss 2.0"], noise) is None
    assert find_other_line(["process 71: loss 2.0"], ["process 93: loss 2.5"], noise) is not None


def test_lines_that_come_and_go_without_a_kill_do_not_count() -> None:
    noise = Noise()
    noise.learn(["loss 1", "cache is warm"], ["loss 1"])
    assert find_other_line(["loss 2", "cache is warm"], ["loss 2"], noise) is None
    assert find_other_line(["loss 2"], ["loss 3"], noise) is not None


def test_names_that_differ_in_indices_are_merged() -> None:
    names = ["a[0][7].t", "b", "a[1][7].t", "c[3]", "a[12][7].t"]
    assert merge_indices(names) == ["a[*][7].t", "b", "c[3]"]


# Scripts that are not wrapped.


def life(folder: Path, *steps: int) -> Life:
    folder.mkdir()
    (folder / "stdout").write_text("training\n" + "".join(f"step {step}: loss {1 / (step + 1):.4f}\n" for step in steps))
    return Life(folder, "killed", None)


@pytest.mark.parametrize(
    ("again", "read", "headline"),
    [
        (range(9), [], "starts again from the beginning"),
        (range(5, 14), ["last.pt"], "continues from a checkpoint of its own"),
        (range(9, 14), ["last.pt"], "continues where it was killed"),
        ([], [], "costs this script all that it has done"),
        ([], ["last.pt"], "costs this script at least what it has done since"),
    ],
)
def test_loss_is_read_off_what_two_lives_print(again: range, read: list[str], headline: str, tmp_path: Path) -> None:
    first, second = life(tmp_path / "first", *range(9)), life(tmp_path / "second", *again)
    assert headline in judge_loss(first, second, ["last.pt", "log.txt"], read).headline


def test_file_that_is_read_at_the_end_only_does_not_make_a_script_continue(tmp_path: Path) -> None:
    """Its lines begin with the epoch: that it is the first again says more than a file that was read at some time."""
    lives = []
    for name, epochs in (("first", range(1, 5)), ("second", range(1, 9))):
        lines = [
            f"Train Epoch: {epoch} [{batch}]\tLoss: {1 / (epoch + batch):.4f}\n" for epoch in epochs for batch in (0, 480, 960)
        ]
        (tmp_path / name).mkdir()
        (tmp_path / name / "stdout").write_text("".join(lines))
        lives.append(Life(tmp_path / name, "killed", None))
    loss = judge_loss(*lives, ["best.pt"], ["best.pt"])
    assert loss.headline == "This script starts again from the beginning: a kill costs all that it has done."
    assert loss.notes[-1] == "reading best.pt does not make it continue"
    # Killed within its first epoch, a script that goes on in the middle of it continues.
    (tmp_path / "first" / "stdout").write_text("Train Epoch: 1 [0]\tLoss: 0.9\nTrain Epoch: 1 [480]\tLoss: 0.8\n")
    (tmp_path / "second" / "stdout").write_text("Train Epoch: 1 [480]\tLoss: 0.8\nTrain Epoch: 1 [960]\tLoss: 0.7\n")
    assert "continues from a checkpoint of its own" in judge_loss(*lives, ["best.pt"], ["best.pt"]).headline


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch", "optimizer.recover()"),
        ("this is no Python", "for epoch in optimizer.epochs(EPOCHS):"),
        ("import torch\nimport lightning.pytorch as pl", "callbacks=[TranLogsLightningCallback("),
        ("from transformers import Trainer", "callbacks=[TranLogsTrainerCallback("),
        ("from accelerate import Accelerator", "log_prepared(accelerator"),
        ("import keras", 'callbacks=[TranLogsCallback("runs/NAME")]'),
    ],
)
def test_lines_to_add_follow_from_the_imports(source: str, line: str) -> None:
    lines = suggest_wrapping({Path("train.py"): source})
    assert 2 <= len(lines) <= 6
    assert any(line in one for one in lines)


def test_script_is_wrapped_if_a_module_beside_it_is(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("from tranlogs_torch import LoggedOptimizer")
    assert mentions_tranlogs({tmp_path / "train.py": "import loop"})
    assert not mentions_tranlogs({tmp_path / "train.py": "import other"})
