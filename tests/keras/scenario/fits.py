"""Several fits in one process: a fit that is left in its middle is taken up by a fresh model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras

from tests.keras.scenario.data import given
from tests.keras.scenario.ends import Interrupt, InterruptAtBeginning, Stop
from tests.keras.scenario.models import MODELS
from tests.keras.scenario.outcome import bits, plain
from tranlogs_keras import TranLogsCallback
from tranlogs_keras.replay.offline import OfflineRun


def optimizer_of(name: str) -> Any:
    """An optimizer from the name of a configuration."""
    from tests.keras.optimizers import CONFIGURATIONS

    return CONFIGURATIONS[name]()


def made(optimizer: str, model: str = "cnn", *, jit: bool = False, eager: bool = False, policy: str | None = None) -> Any:
    """A compiled model, made as in a fresh process."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    keras.config.set_dtype_policy(policy or "float32")
    found = MODELS[model]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    chosen = optimizer_of(optimizer.partition("+")[0])
    if optimizer.endswith("+exclude"):
        chosen.exclude_from_weight_decay(var_names=["bias"])
    found.compile(chosen, loss, metrics=["accuracy"], jit_compile=jit, run_eagerly=eager)
    return found


def logged(run: str, **options: Any) -> TranLogsCallback:
    """A callback that takes no checkpoint by itself, so that all is redone from the log."""
    settings = {"checkpoint_every": 1000, "durability": "process", "segment_bytes": 1 << 20, "verbose": False}
    return TranLogsCallback(run, **(settings | options))


def resumed(
    folder: str,
    names: list[str],
    *,
    model: str = "cnn",
    after: int = 8,
    jit: bool = False,
    eager: bool = False,
    policy: str | None = None,
    log: str = "auto",
    compares: bool = True,
) -> dict[str, Any]:
    """For each optimizer: a fit that is left in its middle and taken up by a fresh model, whose every redone step is compared.

    `compares`: the end, too, with a fit that was not left. Otherwise the second fit ends where its first epoch begins, so that
    nothing more is compiled.
    """
    arguments = given("arrays") | {"verbose": 0}
    if model == "fusing":
        arguments |= {"x": arguments["x"][:12], "y": arguments["y"][:12], "batch_size": 1}
    found = {}
    for name in names:

        def fit(run: str, *others: Any, name: str = name) -> tuple[list[bytes], Any]:
            fresh = made(name, model, jit=jit, eager=eager, policy=policy)
            callback = logged(run, log=log, fingerprint="full")
            try:
                fresh.fit(**arguments, callbacks=[callback, *others])
            except Stop:
                pass
            return [bits(v) for v in [*fresh.variables, *fresh.optimizer.variables]], callback.report

        fit(f"{folder}/{name}-cut", Interrupt(after))
        state, report = fit(f"{folder}/{name}-cut", *([] if compares else [InterruptAtBeginning()]))
        right = fit(f"{folder}/{name}-whole")[0] if compares else state
        different = [i for i, (a, b) in enumerate(zip(state, right, strict=True)) if a != b]
        found[name] = {"different": different, "exact": report.exact, "replayed": report.replayed, "notes": report.notes}
    return found


def many_fits(folder: str) -> dict[str, Any]:
    """fit, fit with the callback, an exception, fit without, fit with another callback: on one model."""
    arguments = given("arrays-in-order") | {"verbose": 0}
    one, other = made("adam", "line"), made("adam", "line")

    def fit_both(seed: int, *callbacks: Any, cut: bool = False, epochs: int = 1) -> None:
        for model, watching in ((one, callbacks), (other, ())):
            keras.utils.set_random_seed(seed)
            try:
                model.fit(**arguments, epochs=epochs, callbacks=[*watching, *([Interrupt(3)] if cut else [])])
            except Stop:
                pass

    fit_both(1)
    fit_both(2, logged(f"{folder}/first"))
    fit_both(3, logged(f"{folder}/second"), cut=True)
    fit_both(4)  # the callback of before must not log this
    fit_both(5, logged(f"{folder}/third"), epochs=2)
    same = all(bits(a) == bits(b) for a, b in zip(one.variables, other.variables, strict=True))
    clean = "train_step" not in vars(one) and "apply" not in vars(one.optimizer)
    steps = [OfflineRun(Path(folder, name, "rank0")).replay().step for name in ("first", "second", "third")]
    return {
        "iterations": int(one.optimizer.iterations),
        "iterations_plain": int(other.optimizer.iterations),
        "logged_is_plain": same,
        "is_as_keras_made_it": clean,
        "steps": steps,
    }


def left_by_an_exception(folder: str) -> dict[str, Any]:
    """The same callback and model, fitted again after an exception: that fit goes on."""
    arguments = given("arrays") | {"verbose": 0, "epochs": 2}
    whole = made("adam")
    history = whole.fit(**arguments, callbacks=[logged(f"{folder}/whole")]).history
    model, callback = made("adam"), logged(f"{folder}/left")
    try:
        model.fit(**arguments, callbacks=[callback, Interrupt(13)])
    except Stop:
        pass
    again = model.fit(**arguments, callbacks=[callback]).history
    same = [bits(a) == bits(b) for a, b in zip(whole.variables, model.variables, strict=True)]
    return {
        "same": all(same),
        "history": plain(history) == plain(again),
        "exact": callback.report.exact,
        "iterations": int(model.optimizer.iterations),
    }


def cut_and_whole(make: Any, folder: str, **options: Any) -> dict[str, Any]:
    """A fit that is left in its middle and taken up by a fresh model, against one that was not; and what was said."""

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tranlogs").addHandler(handler)
    kept = []
    arguments = given("arrays") | {"verbose": 0}
    for run, is_cut in ((f"{folder}/whole", False), (f"{folder}/cut", True)):
        if is_cut:
            try:
                make().fit(**arguments, callbacks=[logged(run, **options), Interrupt(8)])
            except Stop:
                pass
        model, callback = make(), logged(run, **options)
        model.fit(**arguments, callbacks=[callback])
        kept.append([bits(v) for v in model.variables])
    different = [i for i, (a, b) in enumerate(zip(*kept, strict=True)) if a != b]
    return {"different": different, "exact": callback.report.exact, "warning": "\n".join(said)}
