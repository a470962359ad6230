"""Many fits of one model, `compile` between fits and within one, and a script with a resume of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.kills.judge import Expected
from tests.public.keras.proof import Place, kill, prove_exact, run_whole

SCRIPT = "tests.public.keras.several_fits"


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", "jax"], indirect=True)
def test_what_one_fit_has_compiled_the_next_one_uses(backend: Lab, tmp_path: Path) -> None:
    found = run_whole(backend, f"{SCRIPT}:many", tmp_path / "alone", tells=True)
    assert found.printed == ["False False True False"], "another rate of dropout is traced, once"
    prove_exact(backend, f"{SCRIPT}:many", tmp_path, [["batch", 6], ["batch", 4]])


@pytest.mark.crash
@pytest.mark.parametrize("nth", [3, 4, 5])
@pytest.mark.parametrize("point", ["boundary.before", "boundary.after"])
def test_a_kill_where_a_fit_begins_is_one_like_others(torch: Lab, tmp_path: Path, point: str, nth: int) -> None:
    """The third boundary is the end of the first fit, the fourth the beginning of the second, before its first batch."""
    prove_exact(torch, f"{SCRIPT}:many", tmp_path, [[point, nth], [point, 4], [point, 1]])


@pytest.mark.crash
@pytest.mark.parametrize("rechecks", [True, False])
def test_the_checkpoint_at_the_end_of_a_fit_is_made_by_the_next_process(
    torch: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rechecks: bool
) -> None:
    """The second one of the run, which was being published; without it, code between the fits would see other weights."""
    folder = tmp_path / "killed"
    kill(torch, f"{SCRIPT}:between", folder, ["checkpoint.publish", 2], rechecks=rechecks)
    kill(torch, f"{SCRIPT}:between", folder, ["boundary.after", 2], rechecks=rechecks)
    whole, last = (run_whole(torch, f"{SCRIPT}:between", tmp_path / name, rechecks=rechecks) for name in ("whole", "killed"))
    assert last.differences(whole) == []


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "kind"),
    [("tensorflow", "tf.data"), ("jax", "tf.data"), ("torch", "PyDataset"), ("torch", "DataLoader")],
    indirect=["backend"],
)
@pytest.mark.parametrize("place", [["boundary.after", 9], ["boundary.after", 10], ["batch", 10], ["batch", 17], ["batch", 21]])
def test_a_data_set_that_shuffles_goes_on_from_fit_to_fit(backend: Lab, tmp_path: Path, kind: str, place: Place) -> None:
    """The first kill is behind the first fit, which then trains nothing: it takes its passes all the same."""
    prove_exact(backend, f"{SCRIPT}:shared", tmp_path, [place], kind=kind)


@pytest.mark.crash
def test_a_generator_from_which_a_finished_fit_has_drawn_is_named(torch: Lab, tmp_path: Path) -> None:
    expected = Expected(exact=False, because="has drawn from the same Python generator", is_equal=False)
    prove_exact(torch, f"{SCRIPT}:shared", tmp_path, [["boundary.after", 10]], expected=expected, kind="generator")


@pytest.mark.crash
def test_more_epochs_of_a_fit_before_the_newest_are_refused(torch: Lab, tmp_path: Path) -> None:
    """They would never be trained."""
    kill(torch, f"{SCRIPT}:between", tmp_path, ["batch", 4], rechecks=True)
    with pytest.raises(
        AssertionError, match=r"fit 1 was finished with epochs=1, now it has epochs=2, and the run stands in fit 2"
    ):
        run_whole(torch, f"{SCRIPT}:between", tmp_path, rechecks=True, first=2)
    run_whole(torch, f"{SCRIPT}:between", tmp_path, rechecks=True)


@pytest.mark.crash
@pytest.mark.parametrize("nth", [4, 5])
@pytest.mark.parametrize("damage", ["deleted", "cut", "flipped"])
def test_a_damaged_checkpoint_between_two_fits_loses_nothing(torch: Lab, tmp_path: Path, damage: str, nth: int) -> None:
    """The second fit has begun without a checkpoint, and the one before the first fit is left."""
    kill(torch, f"{SCRIPT}:many", tmp_path / "killed", ["boundary.after", nth])
    checkpoints = sorted((tmp_path / "killed" / "run" / "rank0" / "checkpoints").iterdir())
    assert [path.name[:15] for path in checkpoints] == ["step-0000000000", "step-0000000002"]
    if damage == "deleted":
        shutil.rmtree(checkpoints[-1])
    else:
        state = checkpoints[-1] / "state.safetensors"
        whole = state.read_bytes()
        state.write_bytes(whole[:-9] if damage == "cut" else whole[:-9] + bytes(byte ^ 1 for byte in whole[-9:]))
    whole, last = (run_whole(torch, f"{SCRIPT}:many", tmp_path / name) for name in ("whole", "killed"))
    assert last.differences(whole) == []


def test_a_fit_that_goes_on_with_the_same_model_takes_one_checkpoint(torch: Lab, tmp_path: Path) -> None:
    run_whole(torch, f"{SCRIPT}:many", tmp_path)
    steps = [int(path.name.split("-")[1]) for path in (tmp_path / "run" / "rank0" / "checkpoints").iterdir()]
    assert sorted(steps) == [2, 4, 6, 8, 8, 10, 12], "the script changes the model behind the fourth fit"


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("compile", "model.compile was called while fit runs"),
        ("batch", "model.compile was called while fit runs"),
        ("function", "model.make_train_function(force=True) was called while fit runs"),
        ("optimizer", "model.optimizer was replaced while fit runs"),
        ("trainable", "dense/kernel became False while fit runs"),
    ],
)
def test_another_way_of_training_within_a_fit_is_refused_at_once(how: str, name: str, torch: Lab, tmp_path: Path) -> None:
    found = run_whole(torch, f"{SCRIPT}:compiled_within", tmp_path, how=how, log="weights" if how == "batch" else "auto")
    (said,) = found.printed
    assert name in said
    assert "Write two fits, and compile between them" in said
    assert found.of("steps") == {"['steps']": ("int", "4")}, "a refusal must leave the model usable"


@pytest.mark.crash
def test_a_sequential_model_that_the_script_has_loaded_is_recognized(torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, f"{SCRIPT}:loading", tmp_path, [["batch", 6]])
