"""`tranlogs import`: what a checkpoint of another program holds, and a run that is to start from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...recovery.progress import progress_bar
from ..frameworks import importer_of
from ..options import FINE, Json, command
from ..output import screen
from ..output.json_values import print_json

_SHOWN_MAX = 20

Patterns = list[str] | None


@command
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            show_default=False,
            help="A .pt or .safetensors file, or a folder of torch.distributed.checkpoint.",
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", show_default=False, help="Folder of a run that is yet to begin; it is made."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key of the model's weights, where that cannot be told.")
    ] = None,
    missing: Annotated[
        Patterns, typer.Option(metavar="PATTERN", help="What the model has and the source may lack ('head.*'); repeatable.")
    ] = None,
    unexpected: Annotated[
        Patterns, typer.Option(metavar="PATTERN", help="What the source has and the model does not want; repeatable.")
    ] = None,
    cast: Annotated[bool, typer.Option("--cast", help="Convert weights of another dtype to the model's.")] = False,
    only_weights: Annotated[bool, typer.Option("--only-weights", help="Leave optimizers, schedulers and so on out.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Let a folder run the code that its pickles name.")] = False,
    as_json: Json = False,
) -> int:
    """Start a run from a checkpoint of another program.

    Without RUN it only says what is in it. The training script, with run=RUN, loads it in recover() before its first step,
    if its names, shapes and dtypes are those of the model; else it says what differs, and changes nothing. No code of the
    source is run.
    """

    options: dict[str, Any] = {
        "model": model,
        "missing": missing or [],
        "unexpected": unexpected or [],
        "cast": cast,
        "only_weights": only_weights,
        "trust": trust,
    }
    with progress_bar() as progress:
        about = importer_of("torch")(source, run, options, progress)
    if as_json:
        print_json(about)
    else:
        _show(about)
    return FINE


def _show(about: dict[str, Any]) -> None:

    rows: list[tuple[str, object]] = [("source", about["source"])]
    for key, held in about["weights"].items():
        what = f"{screen.count(len(held['tensors']), 'tensor')}, {held['elements']:,} elements, {screen.size(held['bytes'])}"
        rows.append((f"weights {key}".rstrip(), what))
        if held["not_finite"]:
            rows.append(("note", f"not finite: {', '.join(held['not_finite'][:5])}"))
    rows += [
        (f"optimizer {which}" if which != "optimizer" else which, f"state of {screen.count(parameters, 'parameter')}")
        for which, parameters in about["optimizers"].items()
    ]
    rows += [(what.replace("_", " "), ", ".join(about[what])) for what in ("others", "not_used") if about[what]]
    if about["run"]:
        rows.append(
            ("run", f"{about['run']} starts from it ({screen.size(about['bytes'])}): run the script, which calls recover()")
        )
    out = screen.console()
    out.print(screen.facts(rows))
    for key, held in about["weights"].items():
        tensors = list(held["tensors"].items())
        lines = [(name, dtype, "x".join(map(str, shape)) or "-") for name, (dtype, shape) in tensors[:_SHOWN_MAX]]
        out.print()
        out.print(screen.table(f"weights {key}".rstrip(), ["name", "dtype", "shape"], lines))
        if len(tensors) > _SHOWN_MAX:
            out.print(f"... and {len(tensors) - _SHOWN_MAX} more: --json has all")
