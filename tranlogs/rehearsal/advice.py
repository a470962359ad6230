"""The lines that would make a script resume exactly, from what differs and from what the script imports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from .comparison.differences import Difference, Kind
from .training_loop import TrainingLoop, find_training_loop

_SOURCE_BYTES_MAX = 1 << 20
_LAST: dict[Kind, int] = {"printed": 1, "numbers in a file": 2, "file": 3}
_WRAPPED = re.compile(r"\btranlogs(_torch|_keras)?\b")

_REMEMBER = (
    "state = optimizer.remember(NAME=VALUE) before recover(), and state.NAME in the loop, for what a unit takes from the one "
    "before it: a counter, a batch fetched ahead, a hidden state, an environment"
)
_COUNT = "for batch, data in optimizer.batches(loader, until=STEPS, enumerate=True): the true number of the batch"
_COUNT_IN_EPOCH = "for batch, data in epoch.enumerate(): the true number of the batch in its epoch"
_BATCHES = re.compile(r"\w+\.batches\((?:[^()]|\([^()]*\))*\)")
_APPEND = 'open the file with "a", and write what belongs to a batch before the next batch is requested'

_TORCH_LINES: dict[Kind, list[str]] = {
    "recheck": [_REMEMBER, _COUNT],
    "gradients": [_REMEMBER, _COUNT],
    "printed": [_REMEMBER, _COUNT],
    "numbers in a file": [_REMEMBER, _COUNT],
    "random state": ["optimizer.track(generator=generator) for a generator of your own; seed the global ones before recover()"],
    "data position": ["optimizer.track(loader=loader)", "for batch in optimizer.batches(loader, until=STEPS):"],
    "hyper-parameters": ["optimizer.track(scheduler=scheduler)"],
    "buffers": ["LoggedOptimizer(..., model=model) with the module that holds the buffer"],
    "file": [_APPEND],
}
_KERAS_LINES: dict[Kind, list[str]] = {
    "gradients": ["model.fit(DATA, ...) with data that repeat themselves: arrays, a PyDataset, a tf.data pipeline with seeds"],
    "printed": ["keep what is printed in a Keras metric, or in a callback with get_state and set_state"],
    "numbers in a file": ["keep what is written in a Keras metric, or in a callback with get_state and set_state"],
    "file": [_APPEND],
}
_GENERAL: dict[Kind, list[str]] = {
    "tracked state": ["load_state_dict of the object that is named above has to restore all that its state_dict returns"]
}


def read_sources(command: Sequence[str], folder: Path) -> dict[Path, str]:
    """Return the sources of a script: the files that the command line names."""
    found = {}
    names = [word for word in command if word.endswith((".py", ".sh"))]
    modules = [after for word, after in pairwise(command) if word == "-m"]
    names += [module.replace(".", "/") + ending for module in modules for ending in (".py", "/__main__.py")]
    for name in names:
        path = folder / name
        if path.is_file() and path.stat().st_size <= _SOURCE_BYTES_MAX:
            found[path] = path.read_text(errors="replace")
    return found


def mentions_tranlogs(sources: dict[Path, str]) -> bool:
    """Return True if one of the sources, or a module beside it, names TranLogs."""
    if any(_WRAPPED.search(text) for text in sources.values()):
        return True
    for path in {path.parent for path in sources}:
        for near in sorted(path.glob("*.py"))[:100]:
            if near.stat().st_size <= _SOURCE_BYTES_MAX and _WRAPPED.search(near.read_text(errors="replace")):
                name = near.stem
                if any(re.search(rf"\b{re.escape(name)}\b", text) for text in sources.values()):
                    return True
    return False


def advise(
    differences: Sequence[Difference], framework: str, sources: Iterable[str] = (), remembering: Sequence[str] = ()
) -> list[str]:
    """Return the lines to add for what differs first. What is printed follows from the state, and files from both.

    Args:
        differences: what differs.
        framework: "torch" or "keras".
        sources: texts of the script.
        remembering: lines that keep the variables which the script's loops carry.
    """
    lines = {**_GENERAL, **(_KERAS_LINES if framework == "keras" else _TORCH_LINES)}
    kinds = sorted((difference.kind for difference in differences), key=lambda kind: _LAST.get(kind, 0))
    found = next((lines[kind] for kind in kinds if kind in lines), [])
    fitting = list(remembering)
    for line in found:
        if line == _COUNT:
            fitting += _count_batches("\n".join(sources))
        elif line != _REMEMBER or not remembering:
            fitting.append(line)
    return fitting


def _count_batches(text: str) -> list[str]:
    """Return the line for the true number of a batch, in the words of the script."""
    if (loop := _BATCHES.search(text)) is not None:
        call = " ".join(loop.group().split())
        return (
            [] if "enumerate=" in call else [f"for batch, data in {call[:-1]}, enumerate=True): the true number of the batch"]
        )
    if ".epochs(" in text:
        return [] if ".enumerate(" in text else [_COUNT_IN_EPOCH]
    return [] if ".steps(" in text else [_COUNT]


def suggest_wrapping(sources: dict[Path, str]) -> list[str]:
    """Return the lines that make a script resume, guessed from what it imports."""
    text = "\n".join(sources.values())

    def imports(name: str) -> bool:
        return bool(re.search(rf"^\s*(import|from)\s+{name}\b", text, re.MULTILINE))

    if imports("transformers"):
        return [
            "from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback",
            'Trainer(..., callbacks=[TranLogsTrainerCallback("runs/NAME")])',
        ]
    if imports("lightning") or imports("pytorch_lightning"):
        return [
            "from tranlogs_torch.trainers.lightning import TranLogsLightningCallback",
            'Trainer(..., callbacks=[TranLogsLightningCallback("runs/NAME")])',
        ]
    if imports("accelerate"):
        return [
            "from tranlogs_torch.trainers.accelerate import log_prepared",
            'log = log_prepared(accelerator, "runs/NAME", model, optimizer, loader)  # after accelerator.prepare(...)',
            "log.track(scheduler=scheduler).recover()",
            "for epoch in log.epochs(EPOCHS):  # in place of: for epoch in range(EPOCHS)",
            "    for batch in epoch:           # in place of: for batch in loader",
        ]
    if imports("keras") or imports("tensorflow"):
        return [
            "from tranlogs_keras import TranLogsCallback",
            'model.fit(..., callbacks=[TranLogsCallback("runs/NAME")])',
        ]
    return [
        "from tranlogs_torch import LoggedOptimizer",
        'optimizer = LoggedOptimizer(optimizer, run="runs/NAME", model=model)',
        *_suggest_loop(find_training_loop(sources.values())),
    ]


def _suggest_loop(loop: TrainingLoop | None) -> list[str]:
    """Return the lines that track what a loop needs, recover, and take the place of the loop."""
    form = "batches" if loop is None else loop.form
    replaced = "for batch in loader" if loop is None else loop.replaced
    loader, count = (loop.loader or "loader", loop.count) if loop is not None else ("loader", "")
    track = f"optimizer.track(loader={loader})  # and scheduler=..., scaler=...: what has state_dict"
    if loop is not None and form == "epochs":
        return [
            track,
            "optimizer.recover()",
            f"for epoch in optimizer.epochs({count or 'EPOCHS'}):  # in place of: {replaced}; counts from 0",
            f"    {loop.over_epoch()}" if loop.data else f"    {loop.data_loop}:  # over epoch, in place of the loader",
        ]
    if form == "steps":
        return [
            "state = optimizer.remember(NAME=VALUE)  # what a turn takes from the one before; track(...) what has state_dict",
            "optimizer.recover()",
            f"for step in optimizer.steps({count or 'STEPS'}):  # in place of: {replaced}; counts from 0",
        ]
    return [
        track,
        "optimizer.recover()",
        f"for batch in optimizer.batches({loader}, until={count or 'STEPS'}):  # in place of: {replaced}",
    ]
