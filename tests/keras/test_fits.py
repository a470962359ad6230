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


@pytest.mark.parametrize(
    ("backend", "fresh"),
    [("torch", True), campaign.in_soak("torch", False), campaign.in_soak("tensorflow", True)],
    indirect=["backend"],
)
def test_a_second_fit_goes_on_and_the_first_is_passed_over(backend: Lab, fresh: bool, tmp_path: Path) -> None:
    """Layers are thawed between the two; the second one has a callback of its own or that of the first."""
    places: list[Place] = [["batch", 4], ["batch", 5], ["batch", 4]]
    last = prove_exact(backend, "fits:thawed", tmp_path, places, fresh=fresh)
    again = run_whole(backend, "fits:thawed", tmp_path / "killed", fresh=fresh)
    assert again.differences(last) == []
    again.heard.demand_end()


@pytest.mark.parametrize("backend", ["jax", campaign.in_soak("torch"), campaign.in_soak("tensorflow")], indirect=True)
def test_what_one_fit_has_compiled_the_next_one_uses(backend: Lab, tmp_path: Path) -> None:
    if backend.backend != "torch":
        found = run_whole(backend, "fits:many", tmp_path / "alone", tells=True)
        assert found.printed == ["False False True False"], "another rate of dropout is traced, once"
    if campaign.is_soak():  # the gate kills these fits on torch, in the next test
        prove_exact(backend, "fits:many", tmp_path, [["batch", 6], ["batch", 4]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nth", [3, 4, 5])
@pytest.mark.parametrize("point", ["boundary.before", "boundary.after"])
def test_a_kill_where_a_fit_begins_is_one_like_others(torch: Lab, tmp_path: Path, point: str, nth: int) -> None:
    """The third boundary is the end of the first fit, the fourth the beginning of the second, before its first batch."""
    prove_exact(torch, "fits:many", tmp_path, [[point, nth], [point, 4], [point, 1]][: campaign.few(3)])


@pytest.mark.parametrize("rechecks", [True, campaign.in_soak(False)])
def test_the_checkpoint_at_the_end_of_a_fit_is_made_by_the_next_process(torch: Lab, tmp_path: Path, rechecks: bool) -> None:
    """The second one of the run, which was being published; without it, code between the fits would see other weights."""
    folder = tmp_path / "killed"
    kill(torch, "fits:between", folder, ["checkpoint.publish", 2], rechecks=rechecks)
    kill(torch, "fits:between", folder, ["boundary.after", 2], rechecks=rechecks)
    whole, last = (run_whole(torch, "fits:between", tmp_path / name, rechecks=rechecks) for name in ("whole", "killed"))
    assert last.differences(whole) == []


def test_a_generator_from_which_a_finished_fit_has_drawn_is_named(torch: Lab, tmp_path: Path) -> None:
    expected = Expected(exact=False, because="has drawn from the same Python generator", is_equal=False)
    prove_exact(torch, "fits:shared_data", tmp_path, [["boundary.after", 10]], expected=expected, kind="generator")


def test_more_epochs_of_a_fit_before_the_newest_are_refused(torch: Lab, tmp_path: Path) -> None:
    """They would never be trained."""
    kill(torch, "fits:between", tmp_path, ["batch", 4], rechecks=True)
    status, said = end(torch, "fits:between", tmp_path, rechecks=True, first=2)
    assert status == 1
    assert "fit 1 was finished with epochs=1, now it has epochs=2, and the run stands in fit 2" in said
    run_whole(torch, "fits:between", tmp_path, rechecks=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nth", [4, 5])
@pytest.mark.parametrize("damage", ["deleted", "cut", "flipped"])
def test_a_damaged_checkpoint_between_two_fits_loses_nothing(torch: Lab, tmp_path: Path, damage: str, nth: int) -> None:
    """The second fit has begun without a checkpoint, and the one before the first fit is left."""
    kill(torch, "fits:many", tmp_path / "killed", ["boundary.after", nth])
    checkpoints = sorted((tmp_path / "killed" / "run" / "rank0" / "checkpoints").iterdir())
    assert [path.name[:15] for path in checkpoints] == ["step-0000000000", "step-0000000002"]
    if damage == "deleted":
        shutil.rmtree(checkpoints[-1])
    else:
        state = checkpoints[-1] / "state.safetensors"
        whole = state.read_bytes()
        state.write_bytes(whole[:-9] if damage == "cut" else whole[:-9] + bytes(byte ^ 1 for byte in whole[-9:]))
    last = run_whole(torch, "fits:many", tmp_path / "killed")
    assert last.differences(whole_of(torch, "fits:many", tmp_path)) == []


def test_a_fit_that_goes_on_with_the_same_model_takes_one_checkpoint(torch: Lab, tmp_path: Path) -> None:
    run_whole(torch, "fits:many", tmp_path)
    steps = [int(path.name.split("-")[1]) for path in (tmp_path / "run" / "rank0" / "checkpoints").iterdir()]
    assert sorted(steps) == [2, 4, 6, 8, 8, 10, 12], "the script changes the model behind the fourth fit"


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("compile", "model.compile was called while fit runs"),
        campaign.in_soak("batch", "model.compile was called while fit runs"),
        campaign.in_soak("function", "model.make_train_function(force=True) was called while fit runs"),
        campaign.in_soak("optimizer", "model.optimizer was replaced while fit runs"),
        ("trainable", "dense/kernel became False while fit runs"),
    ],
)
def test_another_way_of_training_within_a_fit_is_refused_at_once(how: str, name: str, torch: Lab, tmp_path: Path) -> None:
    found = run_whole(torch, "fits:compiled_within", tmp_path, how=how, log="weights" if how == "batch" else "auto")
    (said,) = found.printed
    assert name in said
    assert "Write two fits, and compile between them" in said
    assert found.of("steps") == {"['steps']": ("int", "4")}, "a refusal must leave the model usable"


def test_the_variables_that_are_trained_may_be_others_in_the_next_fit(torch: Lab, tmp_path: Path) -> None:
    """Low-rank adapters on weights that were quantized: killed in both fits."""
    script = "tests.public.keras.scripts.lora:train"
    prove_exact(torch, script, tmp_path, [["batch", 6], ["batch", 9]], quantized=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("style", "places"),
    [("sequential", [["batch", 15], ["batch", 6]]), ("functional", [["batch", 15]]), ("weights", [["after", 1], ["batch", 9]])],
)
def test_a_script_that_resumes_by_itself_is_recognised(style: str, places: list[Place], torch: Lab, tmp_path: Path) -> None:
    """The model that it loads has other names than the one that it built.

    Also killed after its callbacks have saved the first epoch, and before the last batch of that is proven.
    """
    prove_exact(torch, "fits:resumed_by_itself", tmp_path, places, style=style)


@pytest.mark.parametrize("backend", ["torch", campaign.in_soak("tensorflow")], indirect=True)
def test_one_model_through_many_fits(backend: Lab, tmp_path: Path) -> None:
    found = backend.value("inside.many_fits", folder=str(tmp_path))
    steps = [10, 2, 20]  # neither was a fit without the callback logged, nor was one with it not
    assert found == {"same": True, "is_as_keras_made_it": True, "steps": steps}


def test_a_fit_that_an_exception_ended_goes_on_with_the_same_callback(torch: Lab, tmp_path: Path) -> None:
    assert torch.value("inside.left_by_an_exception", folder=str(tmp_path)) == (True, True)


@pytest.mark.parametrize("data", ["numbered", campaign.in_soak("arrays")])
def test_logging_does_not_change_what_is_trained(data: str, torch: Lab, tmp_path: Path) -> None:
    """In Keras's own order of data, as without TranLogs."""
    about: dict[str, Any] = {"data": data, "options": {"data_order": "keras"}}
    plain = run_whole(torch, "fits:fit", tmp_path / "plain", is_logged=False, **about)
    logged = run_whole(torch, "fits:fit", tmp_path / "logged", **about)
    assert (plain.of("model"), plain.of("history")) == (logged.of("model"), logged.of("history"))


# One callback for many trainings.


@pytest.mark.parametrize("executions", [1, campaign.in_soak(2)])
def test_a_killed_tuner_goes_on_with_each_trial_in_its_own_run(executions: int, torch: Lab, tmp_path: Path) -> None:
    name, arguments = "searches.keras_tuner", {"executions": executions}
    whole = torch.value(name, folder=str(tmp_path / "whole"), **arguments)
    assert [trial[0] for trial in whole["trials"].values()] == ["COMPLETED"] * 3
    assert len({trial[2] for trial in whole["trials"].values()}) == 3
    assert list(whole["batches"].values()) == [10] * 3 * executions, "each trial trains"
    killed = torch.run(name, folder=str(tmp_path / "killed"), die=[executions, 7], **arguments)
    assert killed.was_killed, killed.output[-3000:]
    resumed = torch.value(name, folder=str(tmp_path / "killed"), **arguments)
    assert [resumed[what] for what in ("trials", "best", "runs")] == [whole[what] for what in ("trials", "best", "runs")]
    assert resumed["batches"][0] <= 5, "the killed trial goes on where it stopped, and computes one batch again"


@pytest.mark.soak
def test_a_killed_cross_validation_goes_on_in_its_fold(torch: Lab, tmp_path: Path) -> None:
    whole = torch.value("searches.cross_validation", folder=str(tmp_path / "whole"))
    assert list(whole["batches"].values()) == [8, 8, 8, 12], "each fold and the final fit train"
    assert torch.run("searches.cross_validation", folder=str(tmp_path / "killed"), die=[1, 5]).was_killed
    resumed = torch.value("searches.cross_validation", folder=str(tmp_path / "killed"))
    assert (resumed["scores"], resumed["final"]) == (whole["scores"], whole["final"])
    assert list(resumed["batches"].values()) in ([0, 5, 8, 12], [0, 4, 8, 12]), "one of them is computed again"


# Scripts that are others now.


@pytest.mark.parametrize(
    ("backend", "shape", "change", "words"),
    [
        ("torch", "arrays", {"rate": 0.02}, "model.optimizer.learning_rate was 0.01, now it is 0.02"),
        campaign.in_soak("torch", "loader", {"first": 5}, "hold other values"),
        campaign.in_soak("tensorflow", "dataset", {"first": 5}, "hold other values"),
    ],
    indirect=["backend"],
)
def test_a_finished_run_says_so_to_its_own_script_and_refuses_another(
    backend: Lab, shape: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    first = backend.value("inside.finished", folder=str(tmp_path), shape=shape)
    again = backend.run("inside.finished", folder=str(tmp_path), shape=shape)
    assert again.value == first | {"taken": 0}
    assert "was finished before, at step" in again.output
    other = backend.run("inside.finished", folder=str(tmp_path), shape=shape, **change)
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
        "after": "",
    }
    found = torch.value("inside.refusals", folder=str(tmp_path))
    assert found.keys() == words.keys()
    assert {n: text for n, text in found.items() if words[n] not in text.replace("'", '"') + text} == {}
    assert "folder of its own" in found["equal"]
    assert [found[name] for name in words if not words[name]] == ["", "", ""]
