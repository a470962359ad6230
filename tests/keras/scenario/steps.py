"""What the forked processes do to see how steps are taken and looked at: calls into TensorFlow, writes at every place."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import keras
from keras.src.callbacks.callback_list import CallbackList

import tranlogs.training.gradient_layout
import tranlogs.training.write_forecast
from tests.keras.scenario.data import digits, given
from tests.keras.scenario.ends import Interrupt, Stop
from tests.keras.scenario.fits import logged, made
from tests.keras.scenario.outcome import bits
from tranlogs.training.write_forecast import FIRST_UNITS
from tranlogs_keras import TranLogsCallback
from tranlogs_keras.state.callbacks import copied, is_as_before


def calls(run: str | None, *, jit: bool = False, acts: bool = False) -> dict[str, Any]:
    """Calls into TensorFlow by step, from the end of one to the end of the next: how many had how many.

    `acts`: beside a callback that may write after each batch.
    """
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context

    found: list[int] = []
    count = [0]
    call, execute, end = context.Context.call_function, pywrap_tfe.TFE_Py_FastPathExecute, CallbackList.on_train_batch_end

    def counted_call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        return call(*arguments, **options)

    def counted_execute(*arguments: Any) -> Any:
        count[0] += 1
        return execute(*arguments)

    def ended(self: Any, batch: int, logs: Any = None) -> None:
        found.append(count[0])
        count[0] = 0
        end(self, batch, logs)

    model = made("adam", "line", jit=jit)
    callbacks = [] if run is None else [logged(run)]
    if acts:
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None))
    context.Context.call_function, CallbackList.on_train_batch_end = counted_call, ended
    pywrap_tfe.TFE_Py_FastPathExecute = counted_execute
    try:
        model.fit(**given("arrays") | {"batch_size": 1}, verbose=0, callbacks=callbacks)
    finally:
        context.Context.call_function, CallbackList.on_train_batch_end = call, end
        pywrap_tfe.TFE_Py_FastPathExecute = execute
    return dict(Counter(found[FIRST_UNITS + 2 :]))  # tracing, and looks at each boundary


# Writes.


class Writing(keras.callbacks.Callback):
    """Writes a variable in one of its hooks."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__()
        self._what = what
        setattr(self, place, self._write)  # as LambdaCallback does

    def _write(self, *_: Any, **__: Any) -> None:
        if self._what == "gradient":  # the last one, on torch: no step uses it again
            for variable in self.model.trainable_variables:
                if variable.value.grad is not None:
                    variable.value.grad.mul_(0.5)
            return
        variable = variable_called(self.model, self._what)
        variable.assign(variable * 0.875)


def variable_called(model: Any, what: str) -> Any:
    """A variable of each kind."""
    if what == "rate":
        return model.optimizer.learning_rate
    if what == "momentum":
        return model.optimizer.variables[2]
    if what == "frozen":
        return next(layer for layer in model.layers if layer.variables and not layer.trainable).kernel
    return model.layers[-1].kernel


def written_at(folder: str, *, place: str, what: str, data: str = "arrays", jit: bool = False) -> dict[str, Any]:
    """A fit with a callback that writes, left in its second epoch and taken up; and the same in one go."""
    kept = []
    x, y = digits()
    small = "sparse" if what == "frozen" else "dense" if jit else "line"  # dense: other tests on JAX have compiled it
    if what == "gradient":
        tranlogs.training.gradient_layout.SMALL_BYTES = 0  # as of large ones, no gradient is copied before it is written

    def fit(run: str, *others: Any) -> tuple[Any, Any]:
        keras.utils.set_random_seed(5)  # a pipeline takes its seed as it is made
        options = given(data) | {"verbose": 0, "epochs": 3, "validation_data": (x[:20], y[:20])}
        model, callback = made("adam", small, jit=jit), logged(run, fingerprint="full")
        try:
            model.fit(**options, callbacks=[callback, Writing(place, what), *others])
        except Stop:
            pass
        return model, callback

    fit(f"{folder}/cut", Interrupt(14))
    for run in ("whole", "cut"):
        model, callback = fit(f"{folder}/{run}")
        kept.append([bits(v) for v in [*model.variables, *model.optimizer.variables]])
    different = [i for i, (a, b) in enumerate(zip(*kept, strict=True)) if a != b]
    return {
        "different": different,
        "exact": callback.report.exact,
        "step": callback.report.step,
        "replayed": callback.report.replayed,
        "notes": callback.report.notes,
    }


def _said() -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tranlogs").addHandler(handler)
    return said


def written_by_nobody(folder: str) -> dict[str, Any]:
    """Writes between steps that come from no callback; then, some steps later, an end, and another process."""
    said, end = _said(), CallbackList.on_train_batch_end
    looks = tranlogs.training.write_forecast
    looks.FIRST_UNITS, looks._SHARE = 2, 0.02  # looks come in a short fit, too, and not at each boundary

    def ended(self: Any, batch: int, logs: Any = None) -> None:
        end(self, batch, logs)
        if batch >= 40:
            self.model.layers[-1].kernel.assign(self.model.layers[-1].kernel * 0.99)

    arguments = given("arrays") | {"verbose": 0, "batch_size": 1}
    CallbackList.on_train_batch_end = ended
    try:
        kept = []
        for run, cuts in ((f"{folder}/whole", ()), (f"{folder}/cut", (Raising(60),))):
            model, callback = made("adam", "line"), logged(run, fingerprint="full")
            try:
                model.fit(**arguments, callbacks=[callback, *cuts])
            except Stop:
                model, callback = made("adam", "line"), logged(run, fingerprint="full")
                model.fit(**arguments, callbacks=[callback])
            kept.append([bits(v) for v in model.variables])
    finally:
        CallbackList.on_train_batch_end = end
    different = [i for i, (a, b) in enumerate(zip(*kept, strict=True)) if a != b]
    return {"different": different, "exact": callback.report.exact, "said": "\n".join(said)}


class Raising(keras.callbacks.TerminateOnNaN):
    """Raises in the middle of a fit, in a callback that is taken for one that writes nothing."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise Stop


def inexact_in_one_call(folder: str) -> dict[str, Any]:
    """A backend that computes another update within a step than in redo: by a little, as compilers do."""
    from tranlogs_keras.backends.tensorflow import TensorFlowTap, WholeStep

    update, call = TensorFlowTap._update, WholeStep.__call__
    wholes = [0]

    def other(self: Any, gradients: dict[str, Any]) -> None:
        update(self, {place: gradient * (1 + 2**-20) for place, gradient in gradients.items()})

    def counted(self: Any, iterator: Any) -> Any:
        wholes[0] += 1
        return call(self, iterator)

    TensorFlowTap._update, WholeStep.__call__ = other, counted  # type: ignore[method-assign]
    arguments = given("arrays") | {"verbose": 0, "epochs": 2}
    found: dict[str, Any] = {}
    for run, cuts in (("whole", ()), ("cut", (Interrupt(14),))):
        model, callback = made("adam", "dense"), logged(f"{folder}/{run}", fingerprint="full", checkpoint_every=6)
        try:
            model.fit(**arguments, callbacks=[callback, *cuts])
        except Stop:
            found["wholes_before"], wholes[0] = wholes[0], 0
            model, callback = made("adam", "dense"), logged(f"{folder}/{run}", fingerprint="full")
            model.fit(**arguments, callbacks=[callback])
        found[run] = [bits(v) for v in [*model.variables, *model.optimizer.variables]]
    return {
        "same": found["whole"] == found["cut"],
        "exact": callback.report.exact,
        "replayed": callback.report.replayed,
        "wholes_after": wholes[0],
        "wholes_before": found["wholes_before"],
    }


# Attributes of callbacks.


def comparisons() -> dict[str, bool]:
    """Whether values that are not the same are told apart from what was copied of them; and those that are, not."""
    numbers, nested = [1.0, 2.0], {"loss": [0.5, 0.25], "name": ("a", None, True)}
    copies = copied(numbers), copied(nested)
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    other = {"loss": [0.5, 0.25], "name": ("a", None, 1)}
    found = {
        "equal": is_as_before(numbers, copies[0]) and is_as_before(nested, copies[1]),
        "type": not is_as_before(other, copies[1]) and not is_as_before(True, copied(1)) and not is_as_before(1.0, copied(1)),
        "object": not is_as_before({1}, copied({1})) and not is_as_before(cyclic, copied(cyclic)),
        "keys": not is_as_before({"b": 1, "a": 2}, copied({"a": 2, "b": 1})),
    }
    numbers.append(3.0)
    nested["loss"][0] = 0.125  # type: ignore[index]
    found["written"] = not is_as_before(numbers, copies[0]) and not is_as_before(nested, copies[1])
    return found


def body_parts(folder: str) -> dict[str, Any]:
    """Which parts of boundaries are the same objects from one to the next; and what of the product AutoGraph converts."""
    import tensorflow as tf
    from tensorflow.python.autograph.impl import api

    from tranlogs.encoding.tree import Fixed
    from tranlogs.journal import Journal

    boundary, bodies = Journal.boundary, []
    convert, converted = api._convert_actual, []

    def noted_conversion(entity: Any, context: Any) -> Any:
        converted.append(entity.__module__)
        return convert(entity, context)

    api._convert_actual = noted_conversion

    def noted(self: Any, body: Any, *arguments: Any, **options: Any) -> None:
        bodies.append(body)
        boundary(self, body, *arguments, **options)

    Journal.boundary = noted  # type: ignore[method-assign]
    callback = TranLogsCallback(folder, verbose=False)
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    counting.batches = 0
    made("adam", "line").fit(**given("arrays"), verbose=0, callbacks=[callback, counting])
    a, b = bodies[5:7]
    tf.function(lambda x: x + 1)(1)
    return {
        "converted": converted,
        "fixed": sorted(name for name in a if isinstance(a[name], Fixed) and a[name] is b[name]),
        "others": sorted(name for name in a if a[name] is not b[name]),
        "folder": str(Path(folder)),
    }
