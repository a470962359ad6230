"""The figures of the demo, from the events and files of its three child processes."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from .child_process import Account
from .compare import Compared, compare, compare_states
from .job import PHASES, Job

_IN_FLIGHT_MAX = 1  # batches whose effects a crash may take: the one that it came into
_RECHECKED = 1  # batches that are computed again, to prove that the script resumes exactly


@dataclass(frozen=True, slots=True)
class Acts:
    """The children in order: never killed, killed, recovered. The last two made one run."""

    jobs: tuple[Job, Job, Job]
    reference: Account
    killed: Account
    recovered: Account


@dataclass(frozen=True, slots=True)
class Training:
    """Size of the training."""

    seed: int
    parameters: int
    characters: int
    sequences: str
    threads: int
    batches: int


@dataclass(frozen=True, slots=True)
class Crash:
    """The crash, and the recovery from it.

    Attributes:
        killed_in_batch: number of the batch, counted from 1.
        killed_in: the part of this batch.
        steps_lost: batches that had begun and whose effects did not come back.
        steps_replayed: optimizer steps that recovery redid from the log, on top of `checkpoint_step`.
        recover_seconds: the whole of recovery, loading the checkpoint included.
        replay_seconds: the part of it that redid the steps.
        recompute_seconds: what computing the replayed steps takes, from the median step.
    """

    killed_in_batch: int
    killed_in: str
    steps_lost: int
    steps_replayed: int
    checkpoint_step: int
    recover_seconds: float
    replay_seconds: float
    recompute_seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of logging.

    Attributes:
        overhead_ratio: median step with logging over median step without. Approximate: the two were measured one after
            the other, on a machine that may have had other work.
    """

    step_seconds_plain: float
    step_seconds_logged: float
    overhead_ratio: float
    log_bytes_per_step: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a demo.

    Attributes:
        compared: what was compared between the killed run and the one that was never killed.
        differences: what differs, one sentence each.
        run: folder of the run that was killed.
        curves: path of the picture; None if it was not drawn.
        quick: True for the smaller model.
        seconds: duration of the whole demo.
    """

    training: Training
    crash: Crash
    cost: Cost
    compared: tuple[Compared, ...]
    differences: tuple[str, ...]
    run: str
    curves: str | None = None
    quick: bool = False
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values in one dictionary, for `tranlogs demo --json`."""
        return {
            **asdict(self.training),
            **asdict(self.crash),
            **asdict(self.cost),
            "compared": {part.what: part.is_equal for part in self.compared},
            "differences": list(self.differences),
            "is_exact": self.is_exact,
            "run": self.run,
            "curves": self.curves,
            "quick": self.quick,
            "seconds": self.seconds,
        }


def judge(seed: int, acts: Acts) -> Figures:
    """Compare, count and measure."""
    plain, logged, again = acts.jobs
    reference, killed, recovered = acts.reference, acts.killed, acts.recovered
    report = recovered.recovered
    landed = report["batch"]
    compared = [
        *compare_states(plain.state, again.state),
        compare("order of batches", "{} batches", reference.digests, killed.digests[:landed] + recovered.digests),
    ]
    differences = [difference for part in compared for difference in part.differences]
    differences += _broken_promises(killed, recovered)
    plain_seconds = statistics.median(reference.step_seconds)
    logged_seconds = statistics.median(killed.step_seconds + recovered.step_seconds)
    training = Training(
        seed=seed,
        parameters=reference.built["parameters"],
        characters=reference.built["characters"],
        sequences=f"{plain.batch} x {plain.config.block}",
        threads=plain.threads,
        batches=len(reference.digests),
    )
    crash = Crash(
        killed_in_batch=len(killed.digests),
        killed_in=PHASES[killed.died_in or "start"],
        steps_lost=len(killed.digests) - landed - _count_rechecked(recovered),
        steps_replayed=report["replayed"],
        checkpoint_step=report["checkpoint_step"],
        recover_seconds=report["seconds"],
        replay_seconds=report["seconds_replay"],
        recompute_seconds=report["replayed"] * logged_seconds,
    )
    cost = Cost(
        step_seconds_plain=plain_seconds,
        step_seconds_logged=logged_seconds,
        overhead_ratio=logged_seconds / plain_seconds,
        log_bytes_per_step=round(recovered.finished["log_bytes"] / max(len(recovered.digests), 1)),
    )
    return Figures(training, crash, cost, tuple(compared), tuple(differences), str(logged.run))


def _broken_promises(killed: Account, recovered: Account) -> list[str]:
    """Return the promises that recovery did not keep, although the outcome may be the same."""
    report = recovered.recovered
    landed, began = report["batch"], len(killed.digests)
    final, rechecked = recovered.finished["report"], _count_rechecked(recovered)
    found = []
    if not began - _IN_FLIGHT_MAX <= landed + rechecked <= began:
        found.append(f"recovery came to batch {landed + rechecked}, and {began} had begun")
    if final["exact"] is not True:
        found.append(f"recovery did not find itself exact: {'; '.join(final['notes'])}")
    if rechecked and final["recheck"] != "equal":
        found.append("the last batch before the crash was not computed again, or came out otherwise")
    if killed.digests[landed:] != recovered.digests[: began - landed]:
        found.append("the batch in flight came back with other content")
    return found


def _count_rechecked(recovered: Account) -> int:
    """Return how many batches the recovered process computed again, as a proof."""
    return _RECHECKED if recovered.recovered["recheck"] else 0
