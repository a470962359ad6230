"""All mutants, from one module for each area of the code."""

from __future__ import annotations

from tests.mutants import cli, core, crash, distributed, journal, keras, torch
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *core.MUTANTS,
    *journal.MUTANTS,
    *crash.MUTANTS,
    *torch.MUTANTS,
    *keras.MUTANTS,
    *distributed.MUTANTS,
    *cli.MUTANTS,
)
