"""`tranlogs log`: the records of a run, or one of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import RenderableType

from ...base.errors import UsageError
from ...base.types import Piece
from .. import screen
from ..options import Json, Run, command
from ..parameters import FINE, PROBLEM, Option
from ..reading.find_journals import find_journals, read_consistently
from ..reading.journal_records import (
    JournalRecords,
    RecordLine,
    find_newest,
    find_step,
    list_records,
    read_history,
    show_records,
)
from ..screen import print_json, to_json

_CHARS_MAX = 1000  # of one value of a record


@command
def log(
    run: Run,
    step: Annotated[int | None, Option("--step", "-s", min=0, help="Show the record of this step in full.")] = None,
    limit: Annotated[int, Option("--limit", "-n", min=0, help="Number of newest steps to list; 0 for all.")] = 20,
    as_json: Json = False,
) -> int:
    """List the records of the newest timeline, or show one in full."""
    found = [
        read_consistently(paths.folder, partial(_read_records, paths.folder, step, limit), lambda rank: rank["problems"])
        for paths in find_journals(run)
    ]
    problems = [message for rank in found for message in rank["problems"]]
    if as_json:
        print_json({"run": run, "problems": problems, "ranks": found})
    elif step is None:
        _show(found, _draw_list)
    else:
        _show(found, _draw_records)
    return PROBLEM if problems else FINE


def _read_records(folder: Path, step: int | None, limit: int) -> dict[str, Any]:
    history = read_history(folder)
    problems = list(history.problems)
    chosen = find_newest(history.links, limit) if step is None else _find_step(history, folder, step)
    records: Sequence[Any] = list((list_records if step is None else show_records)(history, chosen, problems))
    older = 0 if step is not None else len(history.links) - len(chosen)
    return {"folder": folder, "records": records, "older_records": older, "problems": list(dict.fromkeys(problems))}


def _find_step(history: JournalRecords, folder: Path, step: int) -> list[Any]:
    found = find_step(history.links, step)
    if not found:
        links = history.links
        first = links[0].step - max(links[0].covered - 1, 0) if links else 0
        found_instead = f"the log holds steps {first} to {links[-1].step}" if links else "the log is empty"
        raise UsageError(f"{folder}: step {step} is not in the log: {found_instead}")
    return found


def _show(found: Sequence[dict[str, Any]], draw: Any) -> None:
    out = screen.console()
    for rank in found:
        for part in draw(rank):
            out.print(part)
        for message in rank["problems"]:
            out.print(screen.problem(message))


def _draw_list(rank: dict[str, Any]) -> list[RenderableType]:
    columns = ("step", "kind", "optimizer", "tensors", "stored", "lr", "scalars")
    rows = [_make_row(records) for records in _units(rank["records"])]
    if not rows:
        return [f"{rank['folder']}: the log is empty"]
    older = rank["older_records"]
    more = [f"({screen.count(older, 'older record')}: --limit 0)"] if older else []
    return [screen.table(str(rank["folder"]), columns, rows, numbers=("step", "tensors", "stored")), *more]


def _units(records: Sequence[RecordLine]) -> list[list[RecordLine]]:
    """Group each record with the boundary that follows it, because the scalars of the boundary belong to the record.

    A boundary without a record of its step forms a group alone.
    """
    units: list[list[RecordLine]] = []
    for record in records:
        if record.kind == "boundary" and units and units[-1][-1].kind != "boundary" and units[-1][0].step == record.step:
            units[-1].append(record)
        else:
            units.append([record])
    return units


def _make_row(unit: Sequence[RecordLine]) -> list[object]:
    first, last = unit[0], unit[-1]
    lr = ", ".join(dict.fromkeys(screen.number(to_json(value)) for value in first.lr))
    scalars = " ".join(f"{name}={screen.number(value)}" for name, value in last.scalars.items())
    kind = first.kind if first.is_committed else f"{first.kind}, not committed"
    return [
        first.step if not last.covered else f"{last.step - last.covered + 1} to {last.step}",
        kind,
        first.optimizer,
        first.tensors,
        screen.size(sum(r.stored_bytes for r in unit)),
        lr,
        scalars,
    ]


def _draw_records(rank: dict[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for record in rank["records"]:
        body = to_json(record.get("body", {}))
        place = f"number {record['sequence']} in {record['segment']}"
        about = {
            "step": record["step"],
            "kind": record["kind"],
            "place": place,
            "covers": _describe_covered(record),
            "scalars": _describe_value(record.get("scalars", {})),
            "committed": "yes" if record["is_committed"] else "no",
        }
        about |= _describe_body(body)
        parts.append(screen.facts([(name, value) for name, value in about.items() if value != ""]))
        parts += [_groups(body["hyper"])] if body.get("hyper") else []
        parts += [_tensors(record["tensors"])] if record.get("tensors") else []
        parts += [_pieces(record["pieces"])] if record.get("pieces") else []
        parts.append("")
    return parts


def _describe_covered(record: dict[str, Any]) -> str:
    """Return the steps that a boundary covers without their tensors; "" if there are none."""
    covered = record.get("covered", 0)
    first, last = record["step"] - covered + 1, record["step"]
    return f"steps {first} to {last}, without tensors: only training can compute them again" if covered else ""


def _describe_body(body: dict[str, Any]) -> dict[str, str]:
    """Return the facts in a record's body that a reader can use, by name. Other parts are only named."""
    tracked = dict(body.get("tracked") or {})
    remembered = tracked.pop("remember(...)", {}).get("values", {})
    rng = [*body.get("rng", {}), *_names_under("rng.", body)]
    about = {
        "optimizer": body.get("optimizer", ""),
        "fingerprint": body.get("fingerprint", ""),
        "position": _describe_place(body),
        "remembered": _shorten(_describe_value(remembered)),
        "tracked": _shorten(_describe_value(tracked)),
        "buffers": ", ".join(body.get("buffers") or {}),
        "callbacks": ", ".join(_names_under("callback.", body)),
        "random": f"states of {', '.join(rng)}" if rng else "",
    }
    others = [name for name in body if name.partition(".")[0] not in _SHOWN]
    return about | ({"more": f"{', '.join(others)} (--json shows all)"} if others else {})


_SHOWN = {"record", "optimizer", "fingerprint", "hyper", "position", "data", "tracked", "buffers", "callback", "rng"}


def _names_under(prefix: str, body: dict[str, Any]) -> list[str]:
    return [name.removeprefix(prefix) for name in body if name.startswith(prefix)]


def _describe_place(body: dict[str, Any]) -> str:
    """Return the epoch, from 1, and the batches of it that are done, for each source of data."""
    position = body.get("position")  # of Keras; PyTorch has one for each loader
    places = {"": position} if isinstance(position, dict) else body.get("data") or {}
    return ", ".join(
        f"{f'{name}: ' if name else ''}epoch {place['epoch'] + 1}, {place['batch']:,} of its batches done"
        for name, place in places.items()
        if isinstance(place, dict) and {"epoch", "batch"} <= place.keys()
    )


def _describe_value(value: Any) -> str:
    """Return a nested value in one line, with large parts described."""
    if isinstance(value, dict):
        if set(value) == {"bytes"}:
            return screen.size(value["bytes"])
        if set(value) == {"dtype", "shape"}:
            return f"{value['dtype']}{value['shape']}"
        return ", ".join(f"{key}={_describe_nested(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_describe_nested(item) for item in value[:8]) + (", ..." if len(value) > 8 else "") + "]"
    return screen.number(value)


def _shorten(text: str) -> str:
    """Return the beginning of a long text: the configuration of a model takes pages."""
    return text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]} ... (--json shows all)"


def _describe_nested(value: Any) -> str:
    return (
        "{" + _describe_value(value) + "}"
        if isinstance(value, dict) and set(value) not in ({"dtype", "shape"}, {"bytes"})
        else _describe_value(value)
    )


def _groups(hyper: Sequence[dict[str, Any]]) -> RenderableType:
    names = list(dict.fromkeys(name for group in hyper for name in group))
    rows = [[name, *(_describe_value(group.get(name, "")) for group in hyper)] for name in names]
    return screen.table("hyper-parameters in force in the step", ["", *(f"group {i}" for i in range(len(hyper)))], rows)


def _tensors(tensors: Sequence[dict[str, Any]]) -> RenderableType:
    has_parts = any(t["piece"] is not None for t in tensors)
    rows = [
        [
            t["name"] + (f" ({t['part']})" if t["part"] else ""),
            t["dtype"],
            _format_shape(t["shape"]),
            *([_format_piece(t["piece"])] if has_parts else []),
            screen.size(t["bytes"]),
        ]
        for t in tensors
    ]
    columns = ("name", "dtype", "shape", *(["part"] if has_parts else []), "bytes")
    return screen.table("tensors", columns, rows, numbers=("bytes",))


def _pieces(pieces: Sequence[dict[str, Any]]) -> RenderableType:
    rows = [[screen.size(p["bytes"]), p["codec"], screen.size(p["stored_bytes"]), p["checksum"]] for p in pieces]
    return screen.table("pieces", ("bytes", "codec", "stored", "checksum"), rows, numbers=("bytes", "stored"))


def _format_shape(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))


def _format_piece(piece: Piece | None) -> str:
    """Return the part of a tensor that this journal holds, and its offset."""
    return "" if piece is None else f"{_format_shape(piece.length)} @{','.join(map(str, piece.offset))}"
