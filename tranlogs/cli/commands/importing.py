"""`tranlogs import`: the content of a checkpoint of another program, and a run that starts from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...frameworks import load_importer
from ...recovery.progress_bar import progress_bar
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
        typer.Argument(metavar="[RUN]", show_default=False, help="Folder of the new run; it is created."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key of the model's weights, if it cannot be determined.")
    ] = None,
    missing: Annotated[
        Patterns, typer.Option(metavar="PATTERN", help="Names that the source may lack ('head.*'); repeatable.")
    ] = None,
    unexpected: Annotated[
        Patterns, typer.Option(metavar="PATTERN", help="Names in the source that the model does not have; repeatable.")
    ] = None,
    cast: Annotated[bool, typer.Option("--cast", help="Convert weights to the model's dtypes.")] = False,
    only_weights: Annotated[bool, typer.Option("--only-weights", help="Import no optimizers, schedulers and so on.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Allow a folder to run the code that its pickles name.")] = False,
    as_json: Json = False,
) -> int:
    """Start a run from a checkpoint of another program.

    Without RUN, only print what the checkpoint contains. The training script, with run=RUN, loads the checkpoint in recover()
    before its first step, if its names, shapes and dtypes are those of the model; otherwise it reports the differences and
    changes nothing. No code of the source is run.
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
        about = load_importer("torch")(source, run, options, progress)
    if as_json:
        print_json(about)
    else:
        _show(about)
    return FINE


def _show(about: dict[str, Any]) -> None:
    """Print what a checkpoint contains."""
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
            ("run", f"{about['run']} will start from it ({screen.size(about['bytes'])}): run the script, which calls recover()")
        )
    out = screen.console()
    out.print(screen.facts(rows))
    for key, held in about["weights"].items():
        tensors = list(held["tensors"].items())
        lines = [(name, dtype, "x".join(map(str, shape)) or "-") for name, (dtype, shape) in tensors[:_SHOWN_MAX]]
        out.print()
        out.print(screen.table(f"weights {key}".rstrip(), ["name", "dtype", "shape"], lines))
        if len(tensors) > _SHOWN_MAX:
            out.print(f"... and {len(tensors) - _SHOWN_MAX} more (--json shows all)")
