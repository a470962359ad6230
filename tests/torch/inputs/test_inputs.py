"""Runs that log no tensors: after a crash the loop computes the steps since the last checkpoint again, and each recorded
boundary on the way is compared.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kills.pytorch import prove
from tests.public.torch.test_scripts import SCRIPTS
from tranlogs.training import NOTHING_RECORDED

# Of these, one counts bytes of log, which there are none of.
OTHERS = ("nanogpt_style", "pytorch_minimal")


@pytest.mark.crash
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in OTHERS])
def test_a_killed_script_ends_with_the_bits_of_its_twin(name: str, tmp_path: Path) -> None:
    script, expected = SCRIPTS[name]
    warns = tuple(text for text in expected.warns if "LBFGS" not in text)
    expected = replace(expected, warns=warns, unproven=NOTHING_RECORDED)
    prove(script, tmp_path / name.replace(" ", "-"), expected, log="inputs", checkpoint_every="auto")
