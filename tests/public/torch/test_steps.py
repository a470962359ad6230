"""Scripts without a loader: what they keep between two turns comes back where it is tracked, and is never called exact else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.public.proof import Expected, Script, prove
from tests.public.torch.scripts import actor_critic, nanogpt, ppo
from tranlogs.training import UNKNOWN_DATA

UNKNOWN = Expected(exact=None, because=UNKNOWN_DATA, is_equal=False, warns=(UNKNOWN_DATA,))
SCRIPTS: dict[str, tuple[Script, Expected]] = {
    "nanogpt": (nanogpt.train, UNKNOWN),
    "nanogpt-tracked": (partial(nanogpt.train, tracks=True), Expected()),
    "nanogpt-stateless": (partial(nanogpt.train, fetches_in_time=True), Expected()),
    "actor-critic": (actor_critic.train, UNKNOWN),
    "actor-critic-tracked": (partial(actor_critic.train, tracks=True), Expected()),
    "ppo": (ppo.train, UNKNOWN),
    "ppo-tracked": (partial(ppo.train, tracks=True), Expected()),
}


@pytest.mark.crash
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_takes_its_turns_from_steps(name: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[name]
    prove(script, tmp_path / name, expected)
