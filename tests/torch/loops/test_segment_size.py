"""Log files fit the model where the user does not say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.loops.log_sizes import fit_segment

MIB = 1 << 20


def test_log_file_of_lbfgs_holds_its_history_four_times() -> None:
    parameters = torch.nn.Linear(64, 128, bias=False).parameters()  # 32 KiB
    assert fit_segment(torch.optim.LBFGS(parameters, history_size=20)) == 4 * 43 * 32 * 1024 // MIB * MIB


@pytest.mark.parametrize(("width", "asked", "expected"), [(8, None, 1), (1024, None, 64), (8, 12 * MIB, 12)])
def test_log_file_has_room_for_some_dozen_steps(tmp_path: Path, width: int, asked: int | None, expected: int) -> None:
    model = torch.nn.Linear(width, width, bias=False)
    with LoggedOptimizer(torch.optim.SGD(model.parameters()), tmp_path / "run", model, segment_bytes=asked) as optimizer:
        optimizer.recover()
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
        in_use = min((tmp_path / "run" / "rank0" / "log").glob("*.seg"))  # the next one may still be in the making
        assert in_use.stat().st_size == expected * MIB
    (path,) = (tmp_path / "run" / "rank0" / "log").glob("*.seg")
    assert path.stat().st_size < 2 * MIB + width * width * 4  # what was not used is given back at the end
