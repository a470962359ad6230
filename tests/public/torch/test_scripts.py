"""Scripts in the style of public ones, killed at every kind of place and at random moments (tests/kills)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.kills.pytorch import Expected, Script, prove
from tests.public.torch.scripts import (
    dcgan,
    forward_forward,
    image_classifier,
    imagenet,
    lora,
    mnist,
    mnist_rnn,
    muon,
    reinforce,
    siamese,
    super_resolution,
    time_sequence,
    vae,
    word_language_model,
)

OF_AN_EPOCH = "in the epoch of a crash, the batches before it"
SCRIPTS: dict[str, tuple[Script, Expected]] = {
    "mnist": (mnist.train, Expected()),
    "dcgan": (dcgan.train, Expected()),
    "reinforce": (reinforce.train, Expected()),
    "word language model": (word_language_model.train, Expected()),
    "super resolution": (super_resolution.train, Expected()),
    "imagenet": (imagenet.train, Expected(warns=(OF_AN_EPOCH,))),
    "imagenet, with a file of its own": (partial(imagenet.train, resumes=True), Expected(warns=(OF_AN_EPOCH,))),
    "imagenet, with a first epoch of its own": (
        partial(imagenet.train, resumes=True, start_epoch=0),
        Expected(exact=None, because="start_epoch", is_equal=False, warns=("taken outside of batches()",)),
    ),
    "vae": (vae.train, Expected()),
    "forward-forward": (forward_forward.train, Expected()),
    "muon": (muon.train, Expected()),
    "lora": (lora.train, Expected()),
    "image classifier": (image_classifier.train, Expected()),
    "siamese": (siamese.train, Expected()),
    "mnist rnn": (mnist_rnn.train, Expected()),
    "time sequence": (time_sequence.train, Expected(warns=("LBFGS evaluates its closure many times per step",))),
    "word language model, not remembered": (
        partial(word_language_model.train, remembers=False),
        Expected(
            exact=False,
            because="was computed again",
            is_equal=False,
            warns=("over at each start", OF_AN_EPOCH),
        ),
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.crash
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[name]
    prove(script, tmp_path / name.replace(" ", "-"), expected)
