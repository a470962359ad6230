"""What a redone step costs: over a computed one, and over the bare optimizer step; tensor by tensor and step by step."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import batches, model_and_text, quartiles, shown, timed

import tranlogs_torch.redo
from tranlogs_torch import LoggedOptimizer

_COMPUTED, _GIVEN = 10, 40  # steps


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds a step: computed, bare optimizer step, redone in both orders, for the kernel forms of AdamW."""
    found = {}
    forms: dict[str, dict[str, Any]] = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    for form, options in forms.items():
        with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
            found[form] = _form(Path(folder) / "run", options, quick=quick)
        f = found[form]
        print(
            f"  {form:8s} computed {f['computed'] * 1e3:.0f} ms, optimizer {f['optimizer'] * 1e3:.1f} ms, redone "
            f"{f['by_tensor'] * 1e3:.1f} ms by tensor, {f['by_step'] * 1e3:.1f} ms by step: 1/{1 / f['over_computed']:.0f} of "
            f"computing, {f['over_optimizer']:.2f}x the optimizer step"
        )
    return found


def _form(run: Path, options: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    model, windows = model_and_text(quick=quick)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-4, **options)
    optimizer = LoggedOptimizer(inner, run, model, checkpoint_every=10**6, durability="process", fingerprint="full")
    optimizer.recover()
    stream, computed, bare = batches(windows), [], []
    for turn in optimizer.steps(_COMPUTED + _GIVEN):
        if turn >= _COMPUTED:  # the replay does not ask where a gradient is from, and a long one is what is to be measured
            for p in model.parameters():
                p.grad = torch.randn_like(p) * 1e-3
            optimizer.step()
            continue
        text, following = next(stream)
        with timed(computed):
            model.loss(text, following).backward()  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad()
    final = [p.detach().clone() for p in model.parameters()]
    optimizer.close()
    plain = torch.optim.AdamW(model.parameters(), lr=0.0, **options)
    for _ in range(8):  # after the run, so that the log's hooks are off
        for p in model.parameters():
            p.grad = torch.randn_like(p) * 1e-3
        with timed(bare):
            plain.step()
    by_tensor, by_step = _replay(run, options, final, quick=quick), float("nan")
    tranlogs_torch.redo._STEPS_MIN = 10**9
    try:
        by_step = _replay(run, options, final, quick=quick)
    finally:
        tranlogs_torch.redo._STEPS_MIN = 2
    step, step_bare = quartiles(computed[2:])[1], quartiles(bare[2:])[1]
    return {
        "computed": step, "optimizer": step_bare, "by_tensor": by_tensor, "by_step": by_step, "shown": shown(computed),
        "over_computed": by_tensor / step, "over_optimizer": by_tensor / step_bare,
    }  # fmt: skip


def _replay(run: Path, options: dict[str, Any], final: list[torch.Tensor], *, quick: bool) -> float:
    """Median seconds a redone step, over three recoveries; the loading of the checkpoint is not in it."""
    times = []
    for _ in range(3):
        model, _ = model_and_text(quick=quick)
        optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-4, **options), run, model)
        report = optimizer.recover()
        assert report.exact, report
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), final, strict=True))
        times.append(optimizer.session.journal.replay_seconds_per_step)
        optimizer.close()
    return quartiles(times)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    measure(quick=parser.parse_args().quick)
