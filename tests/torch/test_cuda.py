"""On a GPU (this file is collected only where there is one): gradients from the device, its random numbers, its kernels."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch import nets
from tests.torch.lab import Attempt, differences, uninterrupted

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda")
Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adamw for each": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw single": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adam capturable": lambda p: torch.optim.Adam(p, torch.tensor(0.01, device=DEVICE), capturable=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


def training(attempt: Attempt, *, make: Make, amp: bool = False, clips: bool = False, large: bool = False) -> None:
    nets.seed()
    torch.cuda.manual_seed_all(3)
    width = 2048 if large else 24
    model = nn.Sequential(nn.Embedding(11, width), nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 11))
    model.to(DEVICE)
    inner = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=amp, init_scale=2.0**30, growth_interval=3)  # some steps are skipped
    optimizer = attempt.wrap(inner, model)
    attempt.start(optimizer, scaler=scaler)
    for x, y in optimizer.batches(nets.tokens(), until=24):
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)).float(), y.to(DEVICE))
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(0.1)
        attempt.tick()
        scaler.step(optimizer)
        scaler.update()
    attempt.keep(params=[p.detach().cpu() for p in model.parameters()], scaler=scaler.state_dict(),
                 random=torch.cuda.get_rng_state(),
                 state=[{k: v.cpu() for k, v in inner.state[p].items() if isinstance(v, torch.Tensor)}
                        for p in model.parameters()])  # fmt: skip
    optimizer.close()


def prove(run: Path, options: dict[str, Any], name: str, **about: bool) -> None:
    """Killed twice by SIGKILL, in processes of their own, since CUDA does not survive a fork."""
    options = {"fingerprint": "full"} | options
    for die_at in (5, 9):
        job = json.dumps({"run": str(run), "die_at": die_at, "options": options, "name": name, "about": about})
        done = subprocess.run([sys.executable, "-m", "tests.torch.test_cuda", job], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    script = partial(training, make=OPTIMIZERS[name], **about)
    right = uninterrupted(script)
    last = Attempt(run, **options)
    script(last)
    assert differences(last.outcome(), right.outcome()) == []
    assert last.reports[0].step > 0
    assert last.reports[0].exact is (None if options["fingerprint"] == "sample" else True)


@pytest.mark.parametrize("handover", ["thread", "direct"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_comes_back(name: str, handover: str, tmp_path: Path) -> None:
    prove(tmp_path / "run", {"handover": handover}, name)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", ["adamw for each", "adamw fused", "sgd fused"])
def test_scaled_gradients_and_skipped_steps(name: str, clips: bool, tmp_path: Path) -> None:
    prove(tmp_path / "run", {}, name, amp=True, clips=clips)


def test_gradients_that_are_overwritten_while_they_are_copied(tmp_path: Path) -> None:
    """Large ones: the copies take longer than the kernels that follow."""
    prove(tmp_path / "run", {"segment_bytes": None}, "sgd", large=True)


@pytest.mark.parametrize("options", [{"log": "weights"}, {"fingerprint": "auto"}], ids=str)
def test_weights_and_sampled_fingerprints(options: dict[str, str], tmp_path: Path) -> None:
    prove(tmp_path / "run", options, "adamw fused")


def main(job: dict[str, Any]) -> None:
    attempt = Attempt(Path(job["run"]), job["die_at"], **job["options"])
    training(attempt, make=OPTIMIZERS[job["name"]], **job["about"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
