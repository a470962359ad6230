"""What a redone step costs over the bare optimizer step, and over a computed one.

A redone step is `seconds_replay` of a recovery over its redone steps: reading, checksums, the update, comparing fingerprints.
The bare step is that of a plain optimizer whose gradients are there. Both take turns, a recovery and a block of bare steps,
then some computed steps. Every recovery is compared with the logged run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from harness import command_line, measured_folder
from paired_timing import over
from torch.optim import AdamW
from training_cases import Work, gpt, gradients_given, many, mlp, parameters_of

from tranlogs_torch import LoggedOptimizer

_CASES = (("MLP, 2.1 M", mlp, 60), ("GPT, 10.7 M", gpt, 24), ("400 small tensors", many, 100))  # steps
_FORMS: dict[str, dict[str, Any]] = {"default": {}, "fused": {"fused": True}}
_NEVER, _BARE, _COMPUTED = 10**9, 20, 2


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Redone over bare and over computed steps, for two kernel forms of AdamW."""
    found: dict[str, Any] = {"replays": []}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, make, steps in _CASES:
        if quick and make is not mlp:
            continue
        for form, options in _FORMS.items():
            with measured_folder() as folder:
                told = _case(Path(folder) / "run", make, options, steps // 10 if quick else steps, rounds=2 if quick else 5)
            found["replays"].append({"case": name, "form": form, **told})
            print(
                f"  {name}, {form} kernels: redone {told['redone_ms']:.2f} ms, bare {told['bare_ms']:.2f} ms, computed "
                f"{told['computed_ms']:.2f} ms; over bare {told['over_bare'][0]:.2f} [{told['over_bare'][1]:.2f}-"
                f"{told['over_bare'][2]:.2f}], over computed {told['over_computed'][0]:.3f}",
                flush=True,
            )
    torch.set_num_threads(threads_before)
    return found


def _case(run: Path, make: Callable[[], Work], options: dict[str, Any], steps: int, *, rounds: int) -> dict[str, Any]:
    work = make()
    inner = AdamW(work.model.parameters(), lr=1e-3, **options)
    settings: dict[str, Any] = {"checkpoint_every": _NEVER, "durability": "process", "fingerprint": "full"}
    with LoggedOptimizer(inner, run, work.model, log="gradients", **settings) as optimizer:
        optimizer.recover()
        for _ in optimizer.steps(steps, stateless=True):
            gradients_given(work)
            optimizer.step()
    final = parameters_of(work)
    plain = make()
    bare = AdamW(plain.model.parameters(), lr=1e-3, **options)
    redone: list[float] = []
    alone: list[float] = []
    computed: list[float] = []
    for _ in range(rounds):
        redone.append(_replay(run, make(), options, final))
        gradients_given(plain)
        alone.append(_median(bare.step, _BARE))
        computed.append(_median(partial(plain.compute, [bare]), _COMPUTED))
    ms = {
        f"{name}_ms": 1e3 * sorted(values)[len(values) // 2]
        for name, values in (("redone", redone), ("bare", alone), ("computed", computed))
    }
    return {"steps": steps, **ms, "over_bare": over(redone, alone), "over_computed": over(redone, computed)}


def _replay(run: Path, work: Work, options: dict[str, Any], final: list[torch.Tensor]) -> float:
    """Seconds of a redone step in one recovery."""
    optimizer = LoggedOptimizer(
        AdamW(work.model.parameters(), lr=1e-3, **options), run, work.model, log="gradients", durability="process"
    )
    report = optimizer.recover()
    optimizer.close()
    if not report.exact or not all(torch.equal(a, b) for a, b in zip(work.model.parameters(), final, strict=True)):
        raise AssertionError(f"the recovered parameters are not those of the logged run: {report}")
    return report.seconds_replay / report.replayed


def _median(work: Callable[[], object], count: int) -> float:
    seconds = []
    for _ in range(count + 1):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return sorted(seconds[1:])[count // 2]


if __name__ == "__main__":
    measure(quick=command_line(__doc__).parse_args().quick)
