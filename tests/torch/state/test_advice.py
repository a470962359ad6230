"""Advice is in the words of the face through which the run is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second
from torch.utils.data import DataLoader, Dataset

from tests.torch.lab import in_child
from tests.torch.nets import seed
from tranlogs.training import Face
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.advice import Case, advise

LINES: dict[Face, tuple[str, ...]] = {  # objects that a line to add may use
    "script": ("optimizer.", "epoch.", "track("),
    "accelerate": ("log.", "epoch.", "track("),
    "callback": (),
}
OBJECTS = re.compile(r"\b(optimizer|log|epoch)\.(?=\w+\()|\btrack\(|LoggedOptimizer\(|log_prepared\(")


@pytest.mark.parametrize("face", get_args(Face))
@pytest.mark.parametrize("case", get_args(Case))
def test_a_line_to_add_uses_what_the_face_has(face: Face, case: Case) -> None:
    used = {found.group() for found in OBJECTS.finditer(advise(case, face))}
    assert used <= set(LINES[face])


class Noisy(Dataset[torch.Tensor]):
    """A dataset that draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2, generator=self.rng)


@pytest.mark.parametrize(
    ("face", "line"),
    [
        ("script", "Give optimizer.track(rng=loader.dataset.rng)"),
        ("accelerate", "Give log.track(rng=loader.dataset.rng)"),
        ("callback", "Let the dataset draw from the global generators"),
    ],
)
def test_a_report_advises_in_the_words_of_the_face(face: Face, line: str, tmp_path: Path) -> None:
    def script(until: int) -> Any:
        seed()
        model, loader = torch.nn.Linear(2, 1), DataLoader(Noisy(), 2)
        optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), 0.1), tmp_path / "run", model)
        optimizer.training_run.report.face = face
        optimizer.track(loader=loader).recover()
        for batch in optimizer.batches(loader, until=until):
            model(batch).sum().backward()
            optimizer.step()
        return optimizer

    in_child(lambda: script(3))
    optimizer = script(4)
    assert any(line in note for note in optimizer.report.notes), optimizer.report
    optimizer.close()
