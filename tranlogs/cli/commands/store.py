"""`tranlogs store list` and `tranlogs store check`: the runs in a store, and whether the store is usable."""

from __future__ import annotations

from typing import Annotated

import typer

from ...base.quantities import parse_bytes, parse_seconds
from ...shipping import list_runs
from ...stores import STALL_SECONDS, TimeoutStore, open_store
from ...stores.check import StoreReport, check_store
from ..options import FINE, PROBLEM, Json, command
from ..output import screen
from ..output.json_values import print_json

store = typer.Typer(
    name="store", no_args_is_help=True, help="List the runs in a store, or check a store.", rich_markup_mode=None
)


@store.callback()
def _group() -> None:
    """List the runs in a store, or check a store."""


@store.command("list")
@command
def list_(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False, help="Address of the store.")],
    as_json: Json = False,
) -> int:
    """List the runs in a store: how far each has been shipped, and when.

    `tranlogs pull URL/RUN` fetches one of them.
    """
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


@store.command()
@command
def check(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            show_default=False,
            help="alluxio://HOST:39999/path[?replication=N], s3://bucket/path, file:///path, or a folder.",
        ),
    ],
    size: Annotated[str, typer.Option("--size", help="Size of the object that is written and read.")] = "32MiB",
    patience: Annotated[str, typer.Option("--patience", help="How long to wait until the object is durable.")] = "30s",
    as_json: Json = False,
) -> int:
    """Check a store by using it: write, look up, read back, wait until durable, delete.

    Reports what is wrong, and which property to set.
    """
    nbytes, patience_seconds = parse_bytes(size, "--size"), parse_seconds(patience, "--patience")
    with TimeoutStore(open_store(url), STALL_SECONDS) as opened:
        report = check_store(opened, nbytes=nbytes, patience_seconds=patience_seconds)
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
