"""Mutants of the log, the catalog, checkpoints and recovery."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
