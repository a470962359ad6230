"""The Keras examples of the documentation, as they stand."""

from __future__ import annotations

from tests.kills.keras import Job
from tests.support.examples import run_example
from tranlogs.training import Remembered
from tranlogs_keras import LoggedOptimizer, TranLogsCallback


def example(job: Job, file: str) -> None:
    """Run an example, which may die behind each line about an epoch."""
    names = run_example(job, file, "epoch ")
    things = [*names.values(), *names.get("callbacks", [])]
    (logged,) = {id(one): one for one in things if isinstance(one, (LoggedOptimizer, TranLogsCallback))}.values()
    job.watch(lambda: logged.report)
    job.keep(model=names["model"], optimizer=names.get("optimizer"))
    job.keep(state=[one for one in names.values() if isinstance(one, Remembered)])
