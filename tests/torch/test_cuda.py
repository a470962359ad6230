"""On a GPU (this file is collected only where there is one): gradients from the device, its random numbers, its kernels."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch import nets
from tests.torch.lab import Attempt, differences, uninterrupted
from tranlogs.log.layout import Layout, Payload
from tranlogs_torch.capture.staging import Staging
from tranlogs_torch.device.digests import DeviceDigests
from tranlogs_torch.tensors.arrays import flat_bytes, spec_of

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda")
Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    # With momentum, PyTorch takes it from memory that nobody has written if a GradScaler skips the first step.
    "sgd fused without momentum": lambda p: torch.optim.SGD(p, 0.05, fused=True),
    "adamw for each": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw single": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adam capturable": lambda p: torch.optim.Adam(p, torch.tensor(0.01, device=DEVICE), capturable=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


def training(
    attempt: Attempt, *, make: Make, amp: bool = False, skips_first: bool = True, clips: bool = False, large: bool = False
) -> None:
    nets.seed()
    torch.cuda.manual_seed_all(3)
    width = 2048 if large else 24
    model = nn.Sequential(nn.Embedding(11, width), nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 11))
    model.to(DEVICE)
    inner = make(model.parameters())
    scale = 2.0 ** (30 if skips_first else 16)  # either way, some steps are skipped
    scaler = torch.amp.GradScaler("cuda", enabled=amp, init_scale=scale, growth_interval=3)
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
    attempt.keep(
        params=[p.detach().cpu() for p in model.parameters()],
        scaler=scaler.state_dict(),
        random=torch.cuda.get_rng_state(),
        state=[{k: v.cpu() for k, v in inner.state[p].items() if isinstance(v, torch.Tensor)} for p in model.parameters()],
    )
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
    assert last.reports[0].step > 0 or about.get("skips_first")
    assert last.reports[0].batch > 5  # what the second life has finished, too
    assert last.reports[0].exact is (None if options["fingerprint"] == "sample" else True)


@pytest.mark.parametrize("writer", ["thread", "direct"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_comes_back(name: str, writer: str, tmp_path: Path) -> None:
    prove(tmp_path / "run", {"writer": writer}, name)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("name", ["adamw for each", "adamw fused", "sgd fused without momentum", "sgd fused"])
def test_scaled_gradients_and_skipped_steps(name: str, clips: bool, tmp_path: Path) -> None:
    prove(tmp_path / "run", {}, name, amp=True, clips=clips, skips_first=name != "sgd fused")


def test_gradients_that_are_overwritten_while_they_are_copied(tmp_path: Path) -> None:
    """Large ones: the copies take longer than the kernels that follow."""
    prove(tmp_path / "run", {"segment_bytes": None}, "sgd", large=True)


@pytest.mark.parametrize("options", [{"log": "weights"}, {"fingerprint": "auto"}], ids=str)
def test_weights_and_sampled_fingerprints(options: dict[str, str], tmp_path: Path) -> None:
    prove(tmp_path / "run", options, "adamw fused")


# Staging and digests on the device itself; their logic is tested on the twin (device/test_staging.py).


def test_staging_under_load_brings_what_the_gradients_were() -> None:
    """Kernels overwrite the gradients right after each call, and the writer reads them late."""
    gradients = [
        torch.empty(n, device=DEVICE, dtype=d)
        for n, d in ((1 << 22, torch.float32), (777, torch.bfloat16), ((1 << 20) + 1, torch.float32))
    ]
    layout = Layout(spec_of(f"t{i}", gradient) for i, gradient in enumerate(gradients))
    staging = Staging()
    busy = torch.randn(2048, 2048, device=DEVICE)
    waiting: deque[tuple[int, Payload]] = deque()

    def demand(step: int, payload: Payload) -> None:
        assert payload.wait is not None
        assert payload.release is not None
        payload.wait()
        expected = np.concatenate([to_host_bytes(torch.full_like(g, step % 100)) for g in gradients])
        assert np.array_equal(np.concatenate(payload.buffers), expected), f"step {step}"
        payload.release()

    for step in range(60):
        busy = torch.tanh(busy @ busy)  # the device is behind the host
        torch._foreach_mul_(gradients, 0.0)
        for gradient in gradients:
            gradient.fill_(step % 100)
        waiting.append((step, staging.stage(layout, gradients)))
        for gradient in gradients:
            gradient.fill_(float("nan"))
        if len(waiting) == 2:
            demand(*waiting.popleft())
    while waiting:
        demand(*waiting.popleft())
    assert staging.statistics.payloads == 60


def to_host_bytes(tensor: torch.Tensor) -> Any:
    return flat_bytes(tensor.cpu())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8])
def test_digests_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    shapes = [(), (1,), (0,), (255,), (257,), (1023, 1031), (3, 1 << 20)]
    near = [(100 * torch.randn(shape)).to(dtype) for shape in shapes]
    near += [near[-2].t(), near[-2][:, ::2], near[-1].reshape(-1)[1:]]
    far = [tensor.to(DEVICE) for tensor in near[:7]]
    far += [far[-2].t(), far[-2][:, ::2], far[-1].reshape(-1)[1:]]
    wanted = DeviceDigests().digests(near).tolist()
    for machine in (DeviceDigests(), DeviceDigests(1 << 14, 4096)):
        assert machine.digests(far).tolist() == wanted
        assert machine.digests(far).tolist() == wanted


def test_snapshots_come_whole() -> None:
    tensors = [
        torch.randn(3, 5, device=DEVICE).t(),
        torch.randn(20 << 20, device=DEVICE),
        torch.randn(2048, 4096, device=DEVICE).t(),
    ]
    staging = Staging()
    targets = [np.empty(tensor.nbytes, np.uint8) for tensor in tensors]
    staging.fetch(list(zip(tensors, targets, strict=True)))
    for tensor, target in zip(tensors, targets, strict=True):
        assert np.array_equal(target, to_host_bytes(tensor.contiguous()))


def main(job: dict[str, Any]) -> None:
    attempt = Attempt(Path(job["run"]), job["die_at"], **job["options"])
    training(attempt, make=OPTIMIZERS[job["name"]], **job["about"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
