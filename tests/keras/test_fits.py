"""Several fits of a script, searches, changed scripts, and settings that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.keras.proof import Place, end, kill, prove_exact, run_whole, whole_of
from tests.kills.judge import Expected
from tests.support import campaign

pytestmark = pytest.mark.crash


# Fits that go on in one another's run.


def test_a_second_fit_goes_on_and_the_first_is_passed_over(torch: Lab, tmp_path: Path) -> None:
    """Low-rank adapters on weights that are quantized between the two: other variables are trained, by another callback."""
    script = "tests.public.keras.scripts.lora:train"
    last = prove_exact(torch, script, tmp_path, [["batch", 6], ["batch", 9], ["batch", 4]])
    again = run_whole(torch, script, tmp_path / "killed")
    assert again.differences(last) == []
    again.heard.demand_end()


@pytest.mark.parametrize("backend", ["jax", campaign.in_soak("tensorflow")], indirect=True)
def test_what_one_fit_has_compiled_the_next_one_uses(backend: Lab, tmp_path: Path) -> None:
    found = run_whole(backend, "fits:many", tmp_path, tells=True)
    assert found.printed == ["False False True False"], "another rate of dropout is traced, once"


@pytest.mark.parametrize("place", [["boundary.before", 3], ["boundary.after", 4], campaign.in_soak(["boundary.after", 5])])
def test_a_kill_where_a_fit_begins_is_one_like_others(torch: Lab, tmp_path: Path, place: Place) -> None:
    """The third boundary is the end of the first fit, the fourth the beginning of the second, before its first batch."""
    prove_exact(torch, "fits:many", tmp_path, [place, [place[0], 4]])


def test_the_checkpoint_at_the_end_of_a_fit_is_made_by_the_next_process(torch: Lab, tmp_path: Path) -> None:
    """The second one of the run, which was being published; without it, code between the fits would see other weights."""
    folder = tmp_path / "killed"
    kill(torch, "fits:many", folder, ["checkpoint.publish", 2])
    kill(torch, "fits:many", folder, ["boundary.after", 2])
    whole, last = (run_whole(torch, "fits:many", tmp_path / name) for name in ("whole", "killed"))
    assert last.differences(whole) == []


def test_a_generator_from_which_a_finished_fit_has_drawn_is_named(torch: Lab, tmp_path: Path) -> None:
    expected = Expected(exact=False, because="has drawn from the same Python generator", is_equal=False)
    prove_exact(torch, "fits:shared_data", tmp_path, [["boundary.after", 10]], expected=expected, kind="generator")


def test_more_epochs_of_a_fit_before_the_newest_are_refused(torch: Lab, tmp_path: Path) -> None:
    """They would never be trained."""
    kill(torch, "fits:many", tmp_path, ["batch", 4])
    status, said = end(torch, "fits:many", tmp_path, first=2)
    assert status == 1
    assert "fit 1 was finished with epochs=1, now it has epochs=2, and the run stands in fit 2" in said
    run_whole(torch, "fits:many", tmp_path)


def test_a_lost_checkpoint_between_two_fits_loses_nothing(torch: Lab, tmp_path: Path) -> None:
    """The second fit has begun without a checkpoint, and the one before the first fit is left."""
    kill(torch, "fits:many", tmp_path / "killed", ["boundary.after", 5])
    checkpoints = sorted((tmp_path / "killed" / "run" / "rank0" / "checkpoints").iterdir())
    assert [path.name[:15] for path in checkpoints] == ["step-0000000000", "step-0000000002"]
    shutil.rmtree(checkpoints[-1])
    last = run_whole(torch, "fits:many", tmp_path / "killed")
    different = last.differences(whole_of(torch, "fits:many", tmp_path))
    assert [what for what in different if not what.startswith("printed")] == [], "but for what code between the fits has seen"


def test_a_fit_that_goes_on_with_the_same_model_takes_one_checkpoint(torch: Lab, tmp_path: Path) -> None:
    run_whole(torch, "fits:many", tmp_path)
    steps = [int(path.name.split("-")[1]) for path in (tmp_path / "run" / "rank0" / "checkpoints").iterdir()]
    assert sorted(steps) == [2, 4, 6, 8, 8, 10, 12], "the script changes the model behind the fourth fit"


def test_another_way_of_training_within_a_fit_is_refused_at_once(torch: Lab, tmp_path: Path) -> None:
    found = run_whole(torch, "fits:compiled_within", tmp_path)
    for said, name in zip(
        found.printed,
        [
            "model.compile was called while fit runs",
            "model.compile was called while fit runs",
            "model.make_train_function(force=True) was called while fit runs",
            "model.optimizer was replaced while fit runs",
            "dense/kernel became False while fit runs",
        ],
        strict=True,
    ):
        assert name in said
        assert "Write two fits, and compile between them" in said
    assert found.of("steps") == {"['steps']": ("list", 5)} | {f"['steps'][{i}]": ("int", "4") for i in range(5)}, (
        "a refusal must leave the model usable"
    )


def test_a_script_that_resumes_by_itself_is_recognised(torch: Lab, tmp_path: Path) -> None:
    """The model that it loads has other names than the one that it built.

    Killed after its callbacks have saved the first epoch, before the last batch of that is proven, and in a batch.
    """
    prove_exact(torch, "fits:resumed_by_itself", tmp_path, [["after", 1], ["batch", 9]])


def test_one_model_through_many_fits(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("inside.many_fits", folder=str(tmp_path))
    steps = [10, 2, 20]  # neither was a fit without the callback logged, nor was one with it not
    assert found == {"same": True, "is_as_keras_made_it": True, "steps": steps}


def test_a_fit_that_an_exception_ended_goes_on_with_the_same_callback(torch: Lab, tmp_path: Path) -> None:
    assert torch.value("inside.left_by_an_exception", folder=str(tmp_path)) == (True, True)


def test_logging_does_not_change_what_is_trained(torch: Lab, tmp_path: Path) -> None:
    """In Keras's own order of data, as without TranLogs."""
    about: dict[str, Any] = {"data": "numbered", "options": {"data_order": "keras"}}
    plain = run_whole(torch, "fits:fit", tmp_path / "plain", is_logged=False, **about)
    logged = run_whole(torch, "fits:fit", tmp_path / "logged", **about)
    assert (plain.of("model"), plain.of("history")) == (logged.of("model"), logged.of("history"))


# One callback for many trainings.


def test_a_killed_tuner_goes_on_with_each_trial_in_its_own_run(torch: Lab, tmp_path: Path) -> None:
    name = "inside.keras_tuner"
    whole = torch.value(name, folder=str(tmp_path / "whole"))
    assert [trial[0] for trial in whole["trials"].values()] == ["COMPLETED"] * 2
    assert len({trial[2] for trial in whole["trials"].values()}) == 2
    assert list(whole["batches"].values()) == [10] * 2, "each trial trains"
    killed = torch.run(name, folder=str(tmp_path / "killed"), die=[1, 7])
    assert killed.was_killed, killed.output[-3000:]
    resumed = torch.value(name, folder=str(tmp_path / "killed"))
    assert [resumed[what] for what in ("trials", "best", "runs")] == [whole[what] for what in ("trials", "best", "runs")]
    assert resumed["batches"][0] <= 5, "the killed trial goes on where it stopped, and computes one batch again"


@pytest.mark.soak
def test_a_killed_cross_validation_goes_on_in_its_fold(torch: Lab, tmp_path: Path) -> None:
    whole = torch.value("inside.cross_validation", folder=str(tmp_path / "whole"))
    assert list(whole["batches"].values()) == [8, 8, 8, 12], "each fold and the final fit train"
    assert torch.run("inside.cross_validation", folder=str(tmp_path / "killed"), die=[1, 5]).was_killed
    resumed = torch.value("inside.cross_validation", folder=str(tmp_path / "killed"))
    assert (resumed["scores"], resumed["final"]) == (whole["scores"], whole["final"])
    assert list(resumed["batches"].values()) in ([0, 5, 8, 12], [0, 4, 8, 12]), "one of them is computed again"


# Scripts that are others now.


def test_a_finished_run_says_so_to_its_own_script_and_refuses_another(torch: Lab, tmp_path: Path) -> None:
    first = torch.value("inside.finished", folder=str(tmp_path))  # on a DataLoader
    again = torch.run("inside.finished", folder=str(tmp_path))
    assert again.value == first | {"taken": 0}
    assert "was finished before, at step" in again.output
    for change, words in (
        ({"rate": 0.02}, "model.optimizer.learning_rate was 0.01, now it is 0.02"),
        ({"first": 5}, "hold other values"),
    ):
        other = torch.run("inside.finished", folder=str(tmp_path), **change)
        assert other.code == 1
        assert words in other.output


def test_a_script_that_was_changed_is_told_so(torch: Lab, tmp_path: Path) -> None:
    """It is refused; if it accepts the changes, it goes on, and they are named."""
    found = torch.value("inside.changed_scripts", folder=str(tmp_path))
    assert (found["same"]["exact"], found["same as it is"]) == (True, "")
    assert "changed" not in found["same"]["notes"]
    words: dict[str, tuple[Any, str]] = {
        "batch_size": (False, "the batch size of the data was 8, now it is 16"),
        "samples": (False, "the number of samples of the data was 78, now it is 40"),
        "values": (False, "the arrays hold other values"),
        "order": ("refused", "the data were Arrays, now they are Consumed"),
        "activation": (None, "activation was 'tanh', now it is 'relu'"),
        "loss": (None, "loss was 'mse', now it is 'mae'"),
        "rate": (True, "model.optimizer.learning_rate was 0.001"),
        "beta": (True, "model.optimizer.beta_1 was 0.9, now it is 0.5"),
        "schedule": ("refused", "its learning rate was a number, now it is"),
    }
    for name, (exact, said) in words.items():
        assert found[name]["exact"] == exact, name
        assert ("beta_1" if name == "beta" else said) in found[name]["notes"], name
        refusal = found[f"{name} as it is"]
        if exact != "refused":
            assert refusal.startswith("UsageError"), name
            assert said in refusal, name
            assert "accept_changes=True" in refusal, name
    assert "now it is 0.5; the script's holds" in found["rate"]["notes"]
    assert found["beta"]["notes"].count("beta_1") == 1
    assert "recorded, but" not in found["schedule"]["notes"], "variables that follow from it need no line each"


def test_a_changed_way_of_compiling_is_refused_by_name(tensorflow: Lab, tmp_path: Path) -> None:
    kill(tensorflow, "fits:fit", tmp_path, ["batch", 3], model="line")
    status, said = end(tensorflow, "fits:fit", tmp_path, model="line", compiled={"jit_compile": True})
    assert status == 1
    assert "jit_compile of model.compile was False, now it is True" in said


def test_wrong_settings_are_named(torch: Lab, tmp_path: Path) -> None:
    """A folder that is given to another training, too; a refusal leaves the model usable."""
    words = {
        "log": 'log="all"',
        "run": "run must be the folder of the run, got None",
        "checkpoint_every": "checkpoint_every must be",
        "backup": "BackupAndRestore",
        "two": "two TranLogsCallbacks",
        "trains": "",
        "shape": "what was built now does not fit what the run recorded (nothing was changed)",
        "optimizer": "was keras.optimizers.Adam, now it is keras.optimizers.SGD",
        "equal": "another model",
        "trains again": "",
        "models": "this callback has logged another model's fit",
        "two updates": "needs exactly one optimizer.apply",
        "after": "",
    }
    found = torch.value("inside.refusals", folder=str(tmp_path))
    assert found.keys() == words.keys()
    assert {n: text for n, text in found.items() if words[n] not in text.replace("'", '"') + text} == {}
    assert "folder of its own" in found["equal"]
    assert [found[name] for name in words if not words[name]] == ["", "", ""]
