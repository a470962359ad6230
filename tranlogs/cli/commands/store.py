"""What `tranlogs status URL` and `tranlogs verify URL` print: the runs in a store, and whether the store is usable."""

from __future__ import annotations

from dataclasses import asdict

from ...shipping import list_runs
from ...stores import STALL_SECONDS, TimeoutStore, open_store
from ...stores.check import StoreReport, check_store
from .. import screen
from ..parameters import FINE, PROBLEM
from ..screen import print_json


def show_runs(url: str, *, as_json: bool) -> int:
    """Print the runs in a store: how far each has been shipped, and when. Return the exit code."""
    runs = list_runs(url)
    if as_json:
        print_json({"runs": [{name: getattr(run, name) for name in run.__slots__} for run in runs]})
    else:
        out = screen.console()
        rows = [
            (
                run.name,
                run.ranks,
                "-" if run.step is None else run.step,
                screen.size(run.nbytes),
                screen.moment(run.at),
                run.host,
            )
            for run in runs
        ]
        columns = ("run", "ranks", "up to step", "bytes", "last sent", "from")
        out.print(screen.table(url, columns, rows, numbers=columns[1:4]) if runs else "the store holds no runs")
        for problem in (problem for run in runs for problem in run.problems):
            out.print(screen.problem(problem))
    return FINE if not any(run.problems for run in runs) else PROBLEM


def check(url: str, *, as_json: bool) -> int:
    """Check a store by using it: write, look up, read back, wait until durable, delete. Return the exit code."""
    with TimeoutStore(open_store(url), STALL_SECONDS) as opened:
        report = check_store(opened)
    if as_json:
        print_json({"is_usable": report.problem is None, **asdict(report)})
    else:
        _show(report)
    return FINE if report.problem is None else PROBLEM


def _show(report: StoreReport) -> None:
    out, seconds = screen.console(), report.seconds
    rows: list[tuple[str, object]] = [("store", report.url)]
    for step, title in (("put", "write"), ("get", "read")):
        if step in seconds:
            rate = report.nbytes / max(seconds[step], 1e-9)
            rows.append((title, f"{screen.size(report.nbytes)} at {screen.size(int(rate))}/s"))
    if "stat" in seconds:
        rows.append(("round trip", f"{seconds['stat'] * 1000:.1f} ms"))
    if report.problem is None:
        rows.append(("durable", f"{seconds['durable']:.2f} s after it was read back"))
    rows.append(("result", "usable" if report.problem is None else "not usable"))
    out.print(screen.facts(rows))
    if report.problem is not None:
        out.print(screen.problem(report.problem))
