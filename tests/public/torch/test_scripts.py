"""Scripts in the style of public ones, one of each kind, killed at every kind of place and at random moments (tests/kills)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.kills.pytorch import Expected, Script, prove
from tests.public.torch.scripts import imagenet, ppo
from tests.public.torch.scripts.of_docs import example
from tests.support.campaign import in_soak
from tranlogs.training import UNKNOWN_DATA

OF_AN_EPOCH = "in the epoch of a crash, the batches before it"
RESTARTS = "over at each start"
EXAMPLES = {
    "pytorch_minimal": {"BATCHES": 20},
    "nanogpt_style": {"STEPS": 20},
    "digits_epochs": {"EPOCHS": 2, "TRAINED": 320},
    "gan": {"BATCHES": 30},
    "actor_critic": {"EPISODES": 20},
    "language_model": {"EPOCHS": 2, "LETTERS": 8_000},
}
SCRIPTS: dict[str, tuple[Script, Expected]] = {
    **{name: (partial(example, name=name, constants=constants), Expected()) for name, constants in EXAMPLES.items()},
    "imagenet, with a file of its own": (partial(imagenet.train, resumes=True), Expected(warns=(OF_AN_EPOCH,))),
    "ppo": (partial(ppo.train, tracks=True), Expected()),
}
# What a script keeps only in its own variables is lost, named, and never called exact.
FORGETFUL: dict[str, tuple[Script, Expected]] = {
    "language_model": (
        partial(example, name="language_model", constants=EXAMPLES["language_model"], remembers=False),
        Expected(exact=False, because="was computed again", is_equal=False, warns=(RESTARTS, OF_AN_EPOCH)),
    ),
    # The unit that is computed again with a wrong batch draws the next one: all is right once the recorded state is set back.
    "nanogpt_style": (
        partial(example, name="nanogpt_style", constants=EXAMPLES["nanogpt_style"], remembers=False),
        Expected(exact=False, because="was computed again", is_equal=None, warns=(RESTARTS,)),
    ),
    "ppo": (
        ppo.train,
        Expected(exact=False, because="was computed again", is_equal=None, warns=(UNKNOWN_DATA, RESTARTS)),
    ),
    "imagenet, with a first epoch of its own": (
        partial(imagenet.train, resumes=True, start_epoch=0),
        Expected(exact=None, because="start_epoch", is_equal=False, warns=("taken outside of batches()",)),
    ),
}


# Several optimizers, epochs with a validation, and a loop over batches are killed in tests/torch, too.
@pytest.mark.crash
@pytest.mark.parametrize(
    "name", [in_soak(name) if name in ("gan", "digits_epochs", "nanogpt_style") else name for name in SCRIPTS]
)
def test_a_killed_script_ends_with_the_bits_of_its_twin(name: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[name]
    prove(script, tmp_path / name.replace(" ", "-"), expected)


@pytest.mark.crash
@pytest.mark.parametrize(
    "name", ["language_model", *map(in_soak, ["imagenet, with a first epoch of its own", "nanogpt_style", "ppo"])]
)
def test_what_a_script_does_not_give_to_the_run_is_named_and_never_called_exact(name: str, tmp_path: Path) -> None:
    script, expected = FORGETFUL[name]
    prove(script, tmp_path / name.replace(" ", "-"), expected)
