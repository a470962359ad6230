"""The body of a fit's boundary besides the model: the position, other callbacks, the identity of the fit."""

from __future__ import annotations

from typing import Any

from tranlogs.training import LiveReport

from .. import keras_internals
from ..data import Position
from ..data.source import Source
from ..state.callbacks import CallbackStates
from ..state.rarely_changed_parts import Parts, found_under
from .earlier_fits import EarlierFits

CALLBACK = "callback."  # names of a boundary's parts for callbacks begin with it


class FitBoundary:
    """Reads the fit's share of a boundary, and writes it back.

    Args:
        model: that is fitted.
        position: in the fit.
        source: of the batches.
        callbacks: of the fit, but for TranLogs's own.
        earlier: fits of the run that have ended.
        constants: what never changes during the fit: the seed, the descriptions of data and fit, the names of callbacks.
        report: receives warnings.

    Attributes:
        callbacks: states of the other callbacks.
        is_end: whether the present boundary is the end of an epoch or of the fit.
    """

    def __init__(
        self,
        model: Any,
        position: Position,
        source: Source,
        callbacks: CallbackStates,
        earlier: EarlierFits,
        constants: dict[str, Any],
        report: LiveReport,
    ) -> None:
        self._model, self._position, self._source = model, position, source
        self.callbacks, self._earlier, self._constants, self._report = callbacks, earlier, constants, report
        self.is_end = True
        self._reported: set[str] = set()

    def read(self, rng_now: dict[str, Any], parts: Parts) -> dict[str, Any]:
        """Return the fit's share of a boundary's body."""
        model = self._model
        return {
            "position": self._position.as_dict(),
            "has_stopped": parts.of("has_stopped", False),
            "logs": keras_internals.last_logs(model) if keras_internals.has_own_train_step(model) else parts.of("logs", None),
            **{name: parts.of(name, value) for name, value in self._constants.items()},
            "earlier": parts.of("earlier", self._earlier.entries),
            "source": parts.of("source", self._source.read(rng_now)),
            **parts.under(CALLBACK, self._read_callbacks()),
        }

    def write_callbacks(self, body: dict[str, Any], *, is_complete: bool = False, has_files: bool = True) -> None:
        """Set the other callbacks to what a boundary holds of them; see `CallbackStates.write`."""
        self.callbacks.write(found_under(CALLBACK, body), is_complete=is_complete, has_files=has_files)

    def _read_callbacks(self) -> dict[str, dict[str, Any]]:
        found = self.callbacks.read(is_end=self.is_end)
        for lost in sorted(self.callbacks.lost - self._reported):
            self._reported.add(lost)
            self._report.warn(f"{lost} has changed, and is of a kind that cannot be stored: it is not brought back", False)
        return found
