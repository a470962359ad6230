"""Scripts without a loader: what they keep between two turns comes back where it is tracked, and is never called exact else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.kills.pytorch import Expected, Script, prove
from tests.public.torch.scripts import actor_critic, nanogpt, ppo
from tranlogs.training import UNKNOWN_DATA

RESTARTS = "over at each start"
NAMED = Expected(exact=False, because="was computed again", is_equal=False, warns=(UNKNOWN_DATA, RESTARTS))
# The unit that is computed again with a wrong batch draws the next batch: once the recorded state is set back, all is right.
HEALED = Expected(exact=False, because="was computed again", is_equal=None, warns=(UNKNOWN_DATA,))
SCRIPTS: dict[str, tuple[Script, Expected]] = {
    "nanogpt": (nanogpt.train, replace(HEALED, warns=(UNKNOWN_DATA, RESTARTS))),
    "nanogpt-remembered": (partial(nanogpt.train, remembers=True), Expected()),
    "nanogpt-stateless": (partial(nanogpt.train, fetches_in_time=True), Expected(warns=(RESTARTS,))),
    "actor-critic": (actor_critic.train, NAMED),
    "actor-critic-remembered": (partial(actor_critic.train, remembers=True), Expected()),
    "ppo": (ppo.train, replace(HEALED, warns=(UNKNOWN_DATA, RESTARTS))),
    "ppo-tracked": (partial(ppo.train, tracks=True), Expected()),
}


@pytest.mark.sampled(3)
@pytest.mark.crash
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_takes_its_turns_from_steps(name: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[name]
    prove(script, tmp_path / name, expected)
