"""Which journals are of the group: what one number of processes trained, and what another one before them (pure).

A run that goes on with another number of processes begins an era, in which all of them start with a checkpoint: later
recoveries need nothing that is older. The journals of the era before stay as they are, also those of ranks that are gone.

newest era                                             the run goes on
all members hold their part, or trained in it          in it
a member's part is missing and nobody trained in it    in the era before, if that reaches as far: the beginning was cut short
nothing of it can be reached, or not `step`            in the era before
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...base.errors import RecoveryError
from .agreement import Agreement, Damage, agree
from .journal_summary import Holding


@dataclass(frozen=True, slots=True)
class Era:
    """What one number of processes holds.

    Attributes:
        since: the timeline with which it began.
        world: how many there were.
        holdings: of each of them; an empty one where it is gone.
    """

    since: int
    world: int
    holdings: tuple[Holding, ...]

    @property
    def is_shared(self) -> bool:
        """Whether parameters and optimizer state were the same on all ranks."""
        return all(holding.is_shared for holding in self.holdings if not holding.is_empty)

    @property
    def is_sharded(self) -> bool:
        """Whether parameters were sharded over the ranks."""
        return any(holding.is_sharded for holding in self.holdings)

    @property
    def has_trained(self) -> bool:
        """Whether any of them went on from where it began."""
        return len(set().union(*(holding.landings() for holding in self.holdings))) > 1


@dataclass(frozen=True, slots=True)
class Settled:
    """Where all land, and in which era; `is_newest` unless a later one is given up."""

    era: Era
    agreement: Agreement
    is_newest: bool


def eras_of(holdings: Iterable[Holding]) -> list[Era]:
    """The eras of which something is there, the newest first."""
    found: dict[int, dict[int, Holding]] = {}
    for holding in holdings:
        if not holding.is_empty:
            found.setdefault(holding.since, {}).setdefault(holding.rank, holding)
    return [_era(since, found[since]) for since in sorted(found, reverse=True)]


def _era(since: int, members: dict[int, Holding]) -> Era:
    world = max(holding.world for holding in members.values())
    return Era(since, world, tuple(members.get(rank) or Holding(rank, "", "") for rank in range(world)))


def settle(eras: Sequence[Era], damage: Damage, step: int | None = None) -> Settled | None:
    """Decide; None if all is fresh.

    Raises:
        RecoveryError: there is no boundary on which all can land, or not at `step`.
    """
    found: Settled | None = None
    error: RecoveryError | None = None
    for era in eras:
        try:
            agreement = agree(era.holdings, damage, step)
        except RecoveryError as caught:
            error = error or caught
            continue
        assert agreement is not None, "an era that holds nothing"
        if found is None:
            found = Settled(era, agreement, era is eras[0])
        elif agreement.step >= found.agreement.step and not agreement.lost:
            return Settled(era, agreement, False)
        if found.era.has_trained or not found.agreement.lost:
            break
    if found is None and error is not None:
        raise error
    return found


def distinct(holdings: Sequence[Holding]) -> list[Holding]:
    """One holding a journal and era: that of its own rank, else the first."""
    found: dict[tuple[int, int], Holding] = {}
    for holding in sorted(holdings, key=lambda holding: holding.keeper):  # its own says -1
        found.setdefault((holding.rank, holding.since), holding)
    return [found[key] for key in sorted(found)]
