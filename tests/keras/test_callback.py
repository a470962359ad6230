"""The callback in a user's hands: several fits, failures, other callbacks, models that gradients do not tell everything of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab, differences
from tests.keras.test_kill import prove_exact
from tests.support import campaign


def test_callbacks_that_write_learning_rates_and_weights(torch: Lab, tmp_path: Path) -> None:
    for others, model in ((["schedule"], "cnn"), (["batch-rate"], "cnn"), (["clamp"], "cnn"), (["thaw"], "sparse")):
        folder = tmp_path / others[0]
        folder.mkdir()
        deaths = [{"die": ["batch", 13]}, {"die": ["batch", 6]}]
        prove_exact(torch, folder, deaths, others=others, model=model, optimizer="adam")


@pytest.mark.parametrize(
    "others",
    [["clamp", "thaw", "batch-rate"], campaign.in_soak(["clamp", "batch-rate"]), campaign.in_soak(["clamp", "thaw"])],
    ids=["all", "clamp-batch-rate", "clamp-thaw"],
)
def test_callbacks_that_write_on_tensorflow(others: list[str], tensorflow: Lab, tmp_path: Path) -> None:
    model = "sparse" if "thaw" in others else "line"
    prove_exact(tensorflow, tmp_path, [{"die": ["batch", 13]}], others=others, model=model, optimizer="adam")


def test_early_stopping_ends_the_run_for_good_with_the_best_weights(torch: Lab, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"others": ["stopping"], "optimizer": "adam", "epochs": 9}
    whole, resumed = prove_exact(torch, tmp_path, [{"die": ["epoch-end", 1]}, {"die": ["batch", 5]}], **arguments)
    assert len(whole["epochs"]) < 9, "it did not stop early"
    again = torch.value("fit", run=str(tmp_path / "killed"), **arguments)
    assert again["state"] == whole["state"]
    assert again["history"] == resumed["history"]


def test_a_finished_run_trains_nothing_and_more_epochs_go_on(torch: Lab, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    first = torch.value("fit", run=run)
    again = torch.value("fit", run=run)
    assert again["state"] == first["state"]
    assert again["history"] == first["history"]
    more = torch.value("fit", run=run, epochs=5)
    whole = torch.twin("fit", epochs=5)
    assert more["state"] == whole["state"]
    assert more["history"] == whole["history"]


@pytest.mark.parametrize(
    ("backend", "data"), campaign.each_once(["tensorflow", "torch"], ["arrays", "numbered"]), indirect=["backend"]
)
def test_logging_does_not_change_what_is_trained(backend: Lab, data: str, tmp_path: Path) -> None:
    """In Keras's own order of data, as without TranLogs (compiled by XLA it rounds otherwise: the step is cut in two)."""
    plain = backend.value("fit", run=None, data=data, optimizer="adam")
    logged = backend.value("fit", run=str(tmp_path / "run"), data=data, optimizer="adam", options={"data_order": "keras"})
    variables = [key for key in plain["state"] if key not in ("numpy", "python")]
    assert [key for key in variables if plain["state"][key] != logged["state"][key]] == []
    assert plain["history"] == logged["history"]


@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_one_model_through_many_fits(backend: Lab, tmp_path: Path) -> None:
    found = backend.value("many_fits", folder=str(tmp_path))
    assert found["iterations"] == found["iterations_plain"]
    assert found["logged_is_plain"]
    assert found["is_as_keras_made_it"]
    assert found["steps"] == [10, 2, 20], "a fit without the callback was logged, or one with it was not"


def test_a_second_fit_of_a_script_goes_on_and_the_first_is_passed_over(torch: Lab, tmp_path: Path) -> None:
    whole = torch.value("two_fits", run=str(tmp_path / "whole"))
    for death in (["batch", 4], ["batch", 9], ["batch", 6]):
        assert torch.run("two_fits", run=str(tmp_path / "killed"), die=death).was_killed
    resumed = torch.value("two_fits", run=str(tmp_path / "killed"))
    assert resumed["state"] == whole["state"]
    assert resumed["between"] == whole["between"], "what stands between the fits works with the trained weights"
    assert resumed["history"] == whole["history"]


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"], indirect=True)
def test_callbacks_that_fits_share_go_on_where_a_later_fit_had_begun(backend: Lab, tmp_path: Path) -> None:
    """Kills in the first batch of the second fit, then of the third; what the fits before have changed is state."""
    whole = backend.value("shared_callbacks", run=str(tmp_path / "whole"))
    for _ in range(2):
        assert backend.run("shared_callbacks", run=str(tmp_path / "killed"), die=["batch-begin", 11]).was_killed
    resumed = backend.value("shared_callbacks", run=str(tmp_path / "killed"))
    assert differences(whole, resumed) == ["report"]
    assert resumed["report"]["exact"] is True


def test_report_stays_that_of_the_recovery_in_later_fits(torch: Lab, tmp_path: Path) -> None:
    """Kills between the first two fits, and in the second one."""
    whole = torch.value("shared_callbacks", run=str(tmp_path / "whole"))
    for die in (["between", 0], ["batch-begin", 3]):
        assert torch.run("shared_callbacks", run=str(tmp_path / "killed"), die=die).was_killed
    resumed = torch.value("shared_callbacks", run=str(tmp_path / "killed"))
    assert differences(whole, resumed) == ["report"]
    assert (resumed["report"]["checkpoint_step"], resumed["report"]["step"]) == (10, 12)


def test_a_train_step_of_ones_own_logs_weights_and_says_so(torch: Lab, tensorflow: Lab, tmp_path: Path) -> None:
    for backend in (torch, tensorflow):
        found = backend.value("own_train_step", folder=str(tmp_path / backend.backend))
        assert "train_step of its own" in found["warning"]
        assert found["different"] == []
        assert found["exact"] is True
        assert "needs exactly one optimizer.apply" in found["refused"] or "cannot be right here" in found["refused"]


def test_an_optimizer_that_gradients_do_not_tell_everything_of_falls_back_to_weights(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("noisy_optimizer", folder=str(tmp_path))
    assert "weights are logged from step 1 on" in found["warning"]
    assert found["different"] == []
    assert found["exact"] is True


def test_a_fit_that_an_exception_ended_goes_on_with_the_same_callback(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("left_by_an_exception", folder=str(tmp_path))
    assert found == {"same": True, "history": True, "exact": True, "iterations": 20}


def test_an_optimizer_that_is_never_used_is_no_obstacle(torch: Lab, tmp_path: Path) -> None:
    assert torch.value("unused_optimizer", folder=str(tmp_path / "run")) == ""


def test_a_finished_fit_that_is_run_again_leaves_what_it_left_before(torch: Lab, tmp_path: Path) -> None:
    """Random numbers, too: those that Keras makes a seed of while it trains, and those of the data."""
    script = {"run": str(tmp_path), "data": "generator", "model": "global-noise", "epochs": 1}
    first, again = (torch.value("fit", **script) for _ in range(2))
    assert differences(first["state"], again["state"]) == []
    assert again["report"]["exact"] is True


def test_state_of_other_kinds_comes_back_batch_by_batch(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, tmp_path, [{"die": ["batch", 13]}, {"die": ["batch", 4]}], others=["collecting"], optimizer="adam")


def test_state_that_cannot_be_told_leaves_fit_running_and_is_named(torch: Lab, tmp_path: Path) -> None:
    plain = torch.twin("fit", optimizer="adam")
    found = torch.value("fit", run=str(tmp_path / "run"), others=["cyclic"], optimizer="adam")
    assert found["state"] == plain["state"]
    assert "Cyclic.held has changed, and is of a kind that cannot be stored" in " ".join(found["report"]["notes"])
    assert found["report"]["exact"] is None


def test_a_dataset_that_comes_to_hold_what_cannot_be_stored_is_named(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("fit", run=str(tmp_path), data="numbered-unstorable", optimizer="adam")
    assert "Unstorable.held has changed, and is of a kind that cannot be stored" in " ".join(found["report"]["notes"])


def test_an_object_that_cannot_be_read_leaves_fit_running_to_its_end(torch: Lab, tmp_path: Path) -> None:
    plain = torch.twin("fit", data="numbered", optimizer="adam")
    found = torch.run("fit", run=str(tmp_path / "run"), data="numbered-unreadable", optimizer="adam")
    assert found.code == 0, found.output[-3000:]
    assert "logging is suspended" in found.output
    assert found.value["state"] == plain["state"]
    assert found.value["history"] == plain["history"]


def test_a_layer_that_writes_its_weights_later_falls_back_to_weights(torch: Lab, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"model": "late", "optimizer": "adam"}
    run = str(tmp_path / "run")
    ended = torch.run("fit", run=run, die=["batch", 13], **arguments)
    assert ended.was_killed
    # The tenth call: Keras calls the layer three times to build the model.
    assert ended.output.count("weights are logged from step 7 on, not gradients: train_step writes") == 1
    assert ended.output.count("weights are logged") == 1
    resumed = torch.value("fit", run=run, **arguments)
    assert resumed["report"]["exact"] is True
    assert resumed["report"]["step"] == 12


@pytest.mark.parametrize("backend", ["torch", "tensorflow"], indirect=True)
def test_a_layer_that_writes_its_weights_at_each_step_is_named_once(backend: Lab, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"model": "spectral", "optimizer": "adam"}
    ended = backend.run("fit", run=str(tmp_path / "run"), die=["batch", 13], **arguments)
    assert ended.was_killed
    assert ended.output.count("weights are logged from step 1 on, not gradients: train_step writes") == 1
    assert ended.output.count("weights are logged") == 1
    resumed = backend.value("fit", run=str(tmp_path / "run"), **arguments)
    whole = backend.twin("fit", **arguments)
    assert resumed["report"]["exact"] is True
    assert resumed["state"] == whole["state"]


def test_wrong_settings_are_named(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("refusals", folder=str(tmp_path))
    assert 'log="all"' in found["log"].replace("'", '"')
    assert "checkpoint_every must be" in found["checkpoint_every"]
    assert "run must be the folder of the run, got None" in found["run"]
    assert "this callback has logged another model's fit" in found["models"]
    assert "BackupAndRestore" in found["backup"]
    assert "two TranLogsCallbacks" in found["two"]
    assert "recorded as" in found["shape"]
    assert "was keras.optimizers.Adam, now it is keras.optimizers.SGD" in found["optimizer"]
    assert found["after"] == "trained", "a refusal must leave the model usable"


def test_a_script_that_was_changed_is_told_so(torch: Lab, tmp_path: Path) -> None:
    found = torch.value("changed_scripts", folder=str(tmp_path))
    assert found["same"] == {"exact": True, "notes": found["same"]["notes"]}
    assert "changed" not in found["same"]["notes"]
    for name, said in (
        ("batch_size", "the batch size of the data was 8, now it is 16"),
        ("samples", "the number of samples of the data was 78, now it is 40"),
        ("values", "the arrays hold other values"),
    ):
        assert found[name]["exact"] is False
        assert said in found[name]["notes"]
        assert said in found[f"{name} as it is"]
    assert "UsageError" in found["order"]["refused"]
    assert "the data were Arrays, now they are Consumed" in found["order"]["refused"]
    assert found["activation"]["exact"] is found["loss"]["exact"] is None
    assert "activation was 'tanh', now it is 'relu'" in found["activation"]["notes"]
    assert "loss was 'mse', now it is 'mae'" in found["loss"]["notes"]
    assert found["rate"]["exact"] is found["beta"]["exact"] is True
    assert "model.optimizer.learning_rate was 0.001" in found["rate"]["notes"]
    assert "now it is 0.5; the script's holds" in found["rate"]["notes"]
    assert found["beta"]["notes"].count("beta_1") == 1
    assert "its learning rate was a number, now it is" in found["schedule"]["refused"]
    assert found["same as it is"] == "trained"
    for name, said in (
        ("activation", "activation was 'tanh', now it is 'relu'"),
        ("loss", "model.compile.loss was 'mse', now it is 'mae'"),
        ("rate", "model.optimizer.learning_rate was 0.001"),
        ("beta", "model.optimizer.beta_1 was 0.9, now it is 0.5"),
    ):
        refusal = found[f"{name} as it is"]
        assert refusal.startswith("UsageError")
        assert said in refusal
        assert "accept_changes=True" in refusal
    assert "recorded, but" not in found["schedule"]["refused"], "variables that follow from it need no line each"


def test_a_changed_way_of_compiling_is_refused_by_name(tensorflow: Lab, tmp_path: Path) -> None:
    assert tensorflow.run("fit", run=str(tmp_path), model="line", die=["batch", 9]).was_killed
    refused = tensorflow.run("fit", run=str(tmp_path), model="line", jit=True)
    assert refused.code == 1
    assert "jit_compile of model.compile was False, now it is True" in refused.output


@pytest.mark.parametrize("failpoint", ["log.write=enospc@5", "log.before_commit=eio@9+", "checkpoint.state=enospc@2+"])
def test_a_failing_disk_leaves_fit_running(failpoint: str, torch: Lab, tmp_path: Path) -> None:
    plain = torch.twin("fit")
    troubled = torch.value("fit", run=str(tmp_path / "troubled"), failpoint=failpoint)
    assert troubled["state"] == plain["state"]
    assert troubled["history"] == plain["history"]


def test_a_full_disk_takes_the_place_of_older_checkpoints(torch: Lab, tmp_path: Path) -> None:
    ran = torch.run("fit", run=str(tmp_path), failpoint="checkpoint.state=enospc@4")
    assert ran.code == 0, ran.output
    assert "only the newest checkpoint is kept" in ran.output
    assert "could not be written" not in ran.output


@pytest.mark.crash
def test_replicas_log_weights_and_come_back(tensorflow: Lab, tmp_path: Path) -> None:
    killed = tensorflow.run("mirrored", run=str(tmp_path / "killed"), die=["batch", 13])
    assert killed.was_killed, killed.output[-3000:]
    assert "trained on 2 replicas" in killed.output
    resumed, whole = (tensorflow.value("mirrored", run=str(tmp_path / name)) for name in ("killed", "whole"))
    assert (resumed["step"], resumed["exact"]) == (12, True)
    assert resumed["state"] == whole["state"]
    assert resumed["history"] == whole["history"]
