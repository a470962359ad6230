"""Metrics for Prometheus: the last evaluation of each journal, labelled by the journal's folder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..watching.watch import Evaluation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATES = ("ready", "open", "sealed", "retired")


class Metrics(Collector):
    """Collects evaluations. The daemon's thread writes, and the server's threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._evaluations: dict[str, Evaluation] = {}
        self._problems: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def note(self, folder: Path, evaluation: Evaluation | None) -> None:
        """Record an evaluation of a journal; None if the journal could not be evaluated."""
        with self._lock:
            if evaluation is None:
                self._problems.add(str(folder))
            else:
                self._evaluations[str(folder)] = evaluation
                self._problems.discard(str(folder))

    def forget(self, folder: Path) -> None:
        """Drop a journal that is not watched any more."""
        with self._lock:
            self._evaluations.pop(str(folder), None)
            self._problems.discard(str(folder))

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all journals."""
        with self._lock:
            evaluation, problems = dict(self._evaluations), set(self._problems)
        watched = GaugeMetricFamily("tranlogs_watched", "1 if the journal could be evaluated.", labels=["journal"])
        for folder in sorted(evaluation.keys() | problems):
            watched.add_metric([folder], float(folder not in problems))
        yield watched
        yield from _steps(evaluation)
        yield from _bytes(evaluation)
        yield from _pruning(evaluation)
        yield from _store(evaluation)


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tranlogs_{name}", about, labels=["journal", *labels])


def _steps(evaluation: dict[str, Evaluation]) -> Iterator[Metric]:
    steps = _gauge("step", "Newest step that has reached a watermark.", "watermark")
    alive = _gauge("trainer_alive", "1 while a process writes the journal.")
    anchor = _gauge("anchor_step", "Step of the newest checkpoint that was read back and is intact.")
    suspended = _gauge("logging_suspended", "1 while logging is suspended.")
    for folder, one in evaluation.items():
        for name in ("committed", "synced", "archived", "persisted"):
            steps.add_metric([folder, name], getattr(one.rows.marks, name))
        alive.add_metric([folder], float(one.owner is not None and one.owner.is_alive))
        suspended.add_metric([folder], float(one.is_suspended))
        if one.anchor is not None:
            anchor.add_metric([folder], one.anchor.step)
    yield from (steps, alive, anchor, suspended)


def _bytes(evaluation: dict[str, Evaluation]) -> Iterator[Metric]:
    nbytes = _gauge("bytes", "Bytes on disk.", "what")
    budget = _gauge("budget_bytes", "The journal's budget.")
    segments = _gauge("segments", "Segments by state.", "state")
    protected = _gauge("protected_segments", "Sealed segments that recovery to the newest step needs.")
    for folder, one in evaluation.items():
        nbytes.add_metric([folder, "log"], sum(row.size for row in one.rows.segments))
        nbytes.add_metric([folder, "checkpoints"], sum(row.nbytes for row in one.rows.checkpoints))
        if one.budget_bytes is not None:
            budget.add_metric([folder], one.budget_bytes)
        states: Counter[str] = Counter(row.state for row in one.rows.segments)
        for state in _STATES:
            segments.add_metric([folder, state], states[state])
        protected.add_metric([folder], sum(one.protected.values()))
    yield from (nbytes, budget, segments, protected)


def _pruning(evaluation: dict[str, Evaluation]) -> Iterator[Metric]:
    pruned = CounterMetricFamily("tranlogs_pruned_bytes", "Bytes that monitors have pruned.", labels=["journal"])
    at = _gauge("evaluated_timestamp_seconds", "Time of the last evaluation.")
    took = _gauge("evaluation_seconds", "Duration of the last evaluation.")
    wanted = _gauge("over_budget", "1 if protected data alone exceed the budget.")
    for folder, one in evaluation.items():
        pruned.add_metric([folder], one.rows.pruned.nbytes)
        at.add_metric([folder], one.at)
        took.add_metric([folder], one.seconds)
        wanted.add_metric([folder], float(one.pruning.wants_checkpoint))
    yield from (pruned, at, took, wanted)


def _store(evaluation: dict[str, Evaluation]) -> Iterator[Metric]:
    """Yield the metrics of the journals that are shipped."""
    ok = _gauge("store_ok", "1 while shipping to the store works, 0 while it does not.")
    nbytes = _gauge("store_bytes", "Bytes that the store holds.")
    lag = _gauge("store_lag_steps", "Committed steps that have not reached a watermark of the store.", "watermark")
    for folder, one in evaluation.items():
        store, marks = one.rows.store, one.rows.marks
        if store is None:
            continue
        ok.add_metric([folder], float(not store.problem))
        nbytes.add_metric([folder], store.objects_bytes)
        for name in ("archived", "persisted"):
            lag.add_metric([folder, name], max(marks.committed - getattr(marks, name), 0))
    yield from (ok, nbytes, lag)
