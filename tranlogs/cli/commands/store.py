"""What `tranlogs status URL` and `tranlogs verify URL` print: the runs in a store, and whether the store is usable."""

from __future__ import annotations

from ...shipping import list_runs
from ...stores import STALL_SECONDS, TimeoutStore, open_store
from ...stores.check import StoreReport, check_store
from .. import screen
from ..options import FINE, PROBLEM
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
        print_json({"is_usable": report.is_usable, **_fields(report)})
    else:
        _show(report)
    return FINE if report.is_usable else PROBLEM


def _fields(report: StoreReport) -> dict[str, object]:
    return {name: getattr(report, name) for name in report.__slots__}


def _show(report: StoreReport) -> None:
    out = screen.console()
    rows: list[tuple[str, object]] = [("store", report.url)]
    if report.round_trip_seconds is not None:
        rows.append(("round trip", f"{report.round_trip_seconds * 1000:.1f} ms"))
    for name, rate in (("write", report.write_rate), ("read", report.read_rate)):
        if rate is not None:
            rows.append((name, f"{screen.size(int(rate))}/s"))
    if report.durable_seconds is not None:
        rows.append(("durable", f"{report.durable_seconds:.2f} s after the write"))
    rows += [("found", finding.what) for finding in report.findings if finding.is_good]
    rows.append(("result", "usable" if report.is_usable else "not usable"))
    out.print(screen.facts(rows))
    for finding in report.findings:
        if not finding.is_good:
            out.print(screen.problem(finding.what))
