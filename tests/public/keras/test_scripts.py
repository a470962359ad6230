"""Scripts in the style of keras.io's examples, killed and taken up again, leave what they would have left without a kill."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import missing
from tests.keras.lab import Lab
from tests.kills.judge import Expected
from tests.public.keras.proof import places_of, prove_script
from tests.support import campaign


@dataclass(frozen=True)
class Case:
    """A script with arguments.

    Attributes:
        script: module in `scripts/`.
        backends: on which it runs.
        batches: of an epoch.
        validates: True if there is a validation after each epoch.
        arguments: of the script.
        expected: what it comes to.
        needs: folder of the environment with a package that is installed apart from the others.
    """

    script: str
    backends: tuple[str, ...]
    batches: int = 6
    validates: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    expected: Expected = field(default_factory=Expected)
    needs: str = ""

    @property
    def name(self) -> str:
        return "-".join([self.script, *map(str, self.arguments.values())])


_WEIGHTS = Expected(warns=("weights are logged, not gradients",))  # of a train_step of its own
CASES = [
    Case("convnet", ("torch",), validates=True),
    Case("text", ("torch",), batches=5, validates=True),
    Case("wgan_gp", ("torch",), batches=4, expected=_WEIGHTS),
    Case("transfer", ("torch",), validates=True, arguments={"data": "arrays"}),
    Case("transfer", ("torch",), validates=True, arguments={"data": "dataset"}),
    Case("imbalanced", ("torch",), validates=True, arguments={"weights": "classes"}),
    Case("imbalanced", ("torch",), validates=True, arguments={"weights": "samples"}),
    Case("custom_layers", ("torch",), validates=True),
    Case("multi_io", ("torch",), validates=True),
    Case("mixed_precision", ("torch",), validates=True),
    Case("own_dataset", ("torch",), arguments={"draws": "in turn", "workers": 1}),
    Case("siamese", ("torch",), batches=5, validates=True),
    Case("distillation", ("torch",)),
    Case("averaged", ("torch",), validates=True, arguments={"style": "swapped"}),
    Case("lora", ("torch",), batches=4, arguments={"quantized": True}),
    Case("many_callbacks", ("torch",), batches=5, validates=True),
    Case("event_files", ("tensorflow",), batches=5, validates=True, needs="tensorboard"),
    Case("own_dataset", ("torch",), arguments={"draws": "by number", "workers": 2}),
    Case("vae", ("tensorflow", "torch"), expected=_WEIGHTS),
    Case("vq_vae", ("torch",), expected=_WEIGHTS),
    Case("dcgan", ("torch",), batches=5, expected=_WEIGHTS),
    Case("timeseries", ("tensorflow",)),  # on PyTorch, a stateful GRU of Keras fails in its first backward pass
    Case("ddim", ("tensorflow",), batches=5, validates=True, expected=_WEIGHTS),
    Case("averaged", ("jax",), validates=True, arguments={"style": "swa"}),
    Case("lora", ("jax",), batches=4, arguments={"quantized": False}),
]
PAIRS = [(case, backend) for case in CASES for backend in case.backends]
_ALSO = {("vae", "tensorflow"), ("ddim", "tensorflow")}  # the first has PyTorch, the second is in test_own_steps.py


@pytest.mark.sampled(8)
@pytest.mark.crash
@pytest.mark.parametrize(
    ("case", "backend"),
    [campaign.in_soak(*pair) if (pair[0].script, pair[1]) in _ALSO else pair for pair in PAIRS],
    ids=[f"{case.name}-{backend}" for case, backend in PAIRS],
    indirect=["backend"],
)
def test_a_killed_script_ends_as_the_one_that_nobody_killed(case: Case, backend: Lab, tmp_path: Path) -> None:
    if case.needs and not (Path(sys.prefix) / case.needs).is_dir():
        missing(f"{case.needs} is not in {sys.prefix}: make test fetches it")
    places = places_of(case.name, backend.backend, batches=case.batches, validates=case.validates)
    prove_script(backend, case.script, tmp_path, places, case.expected, **case.arguments)
