"""Scripts in the style of public ones, killed at every kind of place and at random moments (tests/public/proof.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.public.proof import Expected, Script, prove
from tests.public.torch.scripts import dcgan, mnist, reinforce, super_resolution, word_language_model

SCRIPTS: dict[str, tuple[Script, Expected]] = {
    "mnist": (mnist.train, Expected()),
    "dcgan": (dcgan.train, Expected()),
    "reinforce": (reinforce.train, Expected()),
    "word language model": (word_language_model.train, Expected()),
    "super resolution": (super_resolution.train, Expected()),
}


@pytest.mark.crash
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[name]
    prove(script, tmp_path / name.replace(" ", "-"), expected)
