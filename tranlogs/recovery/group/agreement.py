"""Where ranks that train together recover: a pure decision over what each of them holds.

what the ranks hold                                    decision
nothing, all of them                                   a fresh run
a common boundary N, its shares, a base below          all land on the newest such N; each loads its own checkpoint where
                                                       the shares behind it are complete, else another rank's
nothing, some of them (a lost journal)                 its shares are gone: all land on the newest checkpoint
the same, with copies of its shares on the rank before all land on the newest boundary; the lost rank redoes what that one has
the same, and no record is a share, of ranks that are  all land on the newest boundary; the lost rank redoes what another has
known to be equal
a journal that ends much earlier (from a store), or    the same as if it were gone, if that leads further
is damaged
the same, and parameters are sharded                   refused: its part of the weights is nowhere else
some have said that they ran out of data before N      each of these lands where it left, the others on N
no such N                                              refused
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...base.errors import RecoveryError
from .journal_summary import Anchor, Holding, Stretch

_APART_MAX = 1  # steps between ranks that died together


@dataclass(frozen=True, slots=True)
class Base:
    """The checkpoint that a rank loads: of which rank, and which."""

    rank: int
    anchor: Anchor


@dataclass(frozen=True, slots=True)
class Agreement:
    """All land on the `nth` boundary at `step`; `bases` has each rank's checkpoint, `lost` those whose journals are gone.

    `beside` are those of the lost of which the rank before has copies, `alike` those that redo what another rank has, as it
    is the same; `is_whole` tells that no record is a share. `behind` are those of the lost whose journals are there and end
    earlier, `damaged` those whose journals are; `short` are those that end earlier and count, each with the step, and `end`
    is where the others end. `left` are those that ran out of data before, each with its own step and boundary.
    """

    step: int
    nth: int
    bases: tuple[Base | None, ...]  # None: the rank starts as it was built
    lost: tuple[int, ...]
    timeline: int  # the newest of all
    is_forked: bool  # the timelines differ, or a journal begins anew
    beside: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    short: tuple[tuple[int, int], ...] = ()
    end: int = 0
    left: tuple[tuple[int, int, int], ...] = ()
    alike: tuple[int, ...] = ()
    is_whole: bool = False
    damaged: tuple[int, ...] = ()

    def landing(self, rank: int) -> tuple[int, int]:
        """The step on which a rank lands, and which of its boundaries there."""
        return next(((step, nth) for one, step, nth in self.left if one == rank), (self.step, self.nth))


@dataclass(slots=True)
class Damage:
    """What was found unreadable on the way: checkpoints, records and boundaries, each with its rank.

    `shares` are those that are to be had nowhere, `differ` tells that the ranks came to other states than each other.
    """

    checkpoints: set[tuple[int, str]] = field(default_factory=set)
    records: set[tuple[int, int]] = field(default_factory=set)
    landings: set[tuple[int, int]] = field(default_factory=set)
    shares: set[tuple[int, int]] = field(default_factory=set)
    differ: bool = False

    def __len__(self) -> int:
        return len(self.checkpoints) + len(self.records) + len(self.landings) + len(self.shares) + self.differ


def agree(holdings: Sequence[Holding], damage: Damage, step: int | None = None) -> Agreement | None:
    """Agree, or None if all is fresh. `holdings` has one a rank, in order.

    Raises:
        RecoveryError: there is no boundary on which all can land, or not at `step`.
    """
    held = [holding for holding in holdings if not holding.is_empty]
    ends = {holding.rank: max(holding.landings(), default=0) for holding in held}
    behind = {holding.rank for holding in held if holding.left < 0 and ends[holding.rank] + _APART_MAX < max(ends.values())}
    met = {rank for rank, _ in (*damage.records, *damage.landings)}
    damaged = {holding.rank for holding in held if holding.rank in met or _is_torn(holding)} - behind
    found: Agreement | None = None
    error: RecoveryError | None = None
    try:
        found = _agree(holdings, damage, step)
    except RecoveryError as caught:
        error = caught
    if (found is None and error is None) or (found is not None and step is not None):
        return found
    for without in _left_out(behind, damaged) if found is None or found.step < max(ends.values()) else ():
        rest = [replace(holding, stretches=(), anchors=()) if holding.rank in without else holding for holding in holdings]
        with suppress(RecoveryError):
            other = _agree(rest, damage, step)
            if other is None or any(other.bases[rank] is None for rank in without):
                continue
            least = 0 if without <= behind | met else _APART_MAX  # a sound journal may end that much earlier
            if found is None or other.step > found.step + least:
                found = replace(other, behind=tuple(sorted(without & behind)), damaged=tuple(sorted(without & damaged)))
    if found is None:
        assert error is not None
        raise error
    if found.behind or found.damaged or step is not None:
        return found
    return replace(found, short=tuple((rank, ends[rank]) for rank in sorted(behind)), end=max(ends.values(), default=0))


def _is_torn(holding: Holding) -> bool:
    """Whether none of a rank's own checkpoints leads to the end of its log."""
    last = len(holding.stretches) - 1
    return last > 0 and all(anchor.stretch != last for anchor in holding.anchors)


def _left_out(behind: set[int], damaged: set[int]) -> list[set[int]]:
    """Of which journals to do without, in the order in which it is tried: what leads as far with fewer of them comes first."""
    found = [behind, *({rank} for rank in sorted(damaged)), damaged, behind | damaged]
    return [without for at, without in enumerate(found) if without and without not in found[:at]]


def _agree(holdings: Sequence[Holding], damage: Damage, step: int | None) -> Agreement | None:
    held = [holding for holding in holdings if not holding.is_empty]
    if not held:
        return None
    lost = tuple(holding.rank for holding in holdings if holding.is_empty)
    new = () if any(holding.has_stepped for holding in held) else lost  # they start as they were built
    common = {at for at in set().union(*(one.landings() for one in held)) if all(_can_land(one, at) for one in held)}
    for target in sorted(common if step is None else common & {step}, reverse=True):
        left = tuple((one.rank, one.left, one.count(one.left) or 0) for one in held if _has_left(one, target))
        apart = {rank: (at, count) for rank, at, count in left}
        counts = [count for holding in held if not _has_left(holding, target)
                  and (count := holding.count(target)) is not None]  # fmt: skip
        nth = min(counts, default=0)
        has_copies = any(holding.copies > 1 for holding in held)  # of what was a rank's own at the first boundary of a step
        for place in [min(nth, 1), nth] if lost and has_copies and nth > 1 else [nth]:
            bases = tuple(_base(holding, holdings, damage, *apart.get(holding.rank, (target, place))) for holding in holdings)
            if all(base is not None or holding.rank in new for base, holding in zip(bases, holdings, strict=True)):
                newest = max(holding.timeline for holding in holdings)
                forked = bool(lost) or any(holding.timeline != newest for holding in holdings)
                beside = tuple(rank for rank in lost if _base_beside(rank, holdings, damage, target, place) is not None)
                alike = tuple(rank for rank in lost if rank not in beside
                              and (base := bases[rank]) is not None and base.anchor.step < target)  # fmt: skip
                return Agreement(target, place, bases, lost, newest, forked, beside, left=left, alike=alike,
                                 is_whole=all(one.is_whole for one in held))  # fmt: skip
    raise RecoveryError(_nothing(holdings, held, step, damage))


def _has_left(holding: Holding, target: int) -> bool:
    """Whether a rank said that it had no data left before the others took a step."""
    return 0 <= holding.left < target


def _can_land(holding: Holding, target: int) -> bool:
    return _has_left(holding, target) or target in holding.landings()


def _base(holding: Holding, holdings: Sequence[Holding], damage: Damage, target: int, nth: int) -> Base | None:
    """The checkpoint from which a rank reaches the target: the newest, and of these its own."""
    if holding.is_empty and (beside := _base_beside(holding.rank, holdings, damage, target, nth)) is not None:
        return beside
    own = [Base(holding.rank, anchor) for anchor in holding.anchors]
    held = [other for other in holdings if not other.is_empty]
    if holding.is_empty and _are_alike(held, damage) and (base := _base(held[0], holdings, damage, target, nth)) is not None:
        return base
    are_same = all(other.is_shared for other in held) and (holding.is_empty or not damage.differ)
    needs_shares = any(other.is_shared for other in held) and not all(other.is_whole for other in held)
    foreign = [Base(other.rank, anchor) for other in held if are_same and other.rank != holding.rank
               for anchor in other.anchors if not _has_left(other, anchor.step + 1)]  # fmt: skip
    candidates = [base for base in own + foreign if base.anchor.step <= target
                  and (base.rank, base.anchor.name) not in damage.checkpoints]  # fmt: skip
    for base in sorted(candidates, key=lambda base: -base.anchor.step):  # stable: its own first
        start = base.anchor.step
        reaches = start == target if holding.is_empty else _reaches(holding, base, target, nth, damage)
        complete = start == target or not (
            any(start < step <= target for _, step in damage.shares)
            or (needs_shares and not all(_has_shares(other, holdings, start, target, damage) for other in holdings))
        )
        if reaches and complete:
            return base
    return None


def _are_alike(held: Sequence[Holding], damage: Damage) -> bool:
    """Whether any of the ranks can stand for one whose journal is gone: each has all of it, and they are known to be equal."""
    if damage.differ or any(one.is_sharded for one in held):
        return False
    return all(one.is_shared and one.is_whole for one in held) or all(not one.is_shared and one.equal >= 0 for one in held)


def _reaches(holding: Holding, base: Base, target: int, nth: int, damage: Damage) -> bool:
    """Whether a rank's own entries lead from a checkpoint to the target."""
    start = base.anchor.step
    own = base.rank == holding.rank
    if own and start == target and (nth in (0, base.anchor.nth) or holding.count(target) is None):
        return True
    if any(rank == holding.rank and (start < step <= target or step == target) for rank, step in damage.landings):
        return False  # all on the way are read
    for i, stretch in enumerate(holding.stretches):
        if target not in stretch.landings or not _is_sound(holding.rank, stretch, start, target, damage):
            continue
        if own and i == base.anchor.stretch and (start < target or base.anchor.nth < nth):
            return True
        if not own and start in stretch.landings and (start < target or 0 < nth >= base.anchor.nth):
            return True
    return False


def _base_beside(rank: int, holdings: Sequence[Holding], damage: Damage, target: int, nth: int) -> Base | None:
    """The checkpoint from which a lost rank comes to the target by what the rank before holds of it."""
    keeper = copy_of(rank, holdings)
    return None if keeper is None or keeper.is_empty else _base(keeper, holdings, damage, target, nth)


def copy_of(rank: int, holdings: Sequence[Holding]) -> Holding | None:
    """What the rank before holds, if it has copies of this one's shares and of what is its own."""
    before = holdings[(rank - 1) % len(holdings)]
    return before if before.copies > 1 and before.rank != rank else None


def _has_shares(holding: Holding, holdings: Sequence[Holding], start: int, target: int, damage: Damage) -> bool:
    """Whether a rank's shares of some steps are there, in its own journal or as copies."""
    if holding.left >= 0:  # of what came behind there are none
        target = min(target, holding.left)
    if target <= start or _has_records(holding, start, target, damage):
        return True
    keeper = copy_of(holding.rank, holdings)
    return keeper is not None and _has_records(keeper, start, target, damage)


def _has_records(holding: Holding, start: int, target: int, damage: Damage) -> bool:
    return any(_is_sound(holding.rank, stretch, start, target, damage) for stretch in holding.stretches)


def _is_sound(rank: int, stretch: Stretch, start: int, target: int, damage: Damage) -> bool:
    covers = stretch.after <= start and target <= stretch.last
    return covers and not any(r == rank and start < step <= target for r, step in damage.records)


def _nothing(holdings: Sequence[Holding], held: Sequence[Holding], step: int | None, damage: Damage) -> str:
    what = f"step {step} is not covered on all ranks" if step is not None else "there is no step on which all ranks can land"
    lost = [holding.rank for holding in holdings if holding.is_empty]
    gone = f"; the journals of ranks {_listed(lost)} are gone" if lost else ""
    if lost and any(holding.is_sharded for holding in held):
        gone += (
            ", and with them their shards of weights and optimizer state, which are nowhere else. Bring these journals back "
            "(from a store: `tranlogs pull`), or begin another run"
        )
    elif lost and not all(holding.is_shared for holding in held):
        gone += (
            f", and with them what these ranks trained: each rank logged its own steps, and {_unlike(held, damage)}. Bring "
            "these journals back (from a store: `tranlogs pull`), or begin another run"
        )
    is_before = step is not None and step < min((min(holding.landings()) for holding in held), default=0)
    pruned = "; what is older was pruned, or is no longer listed: `keep=` says how many checkpoints stay" if is_before else ""
    return f"{what}: {', '.join(_told(held))}{pruned}{gone}"


def _unlike(held: Sequence[Holding], damage: Damage) -> str:
    apart = damage.differ or any(holding.is_shared for holding in held)
    return "their weights are not the same" if apart else "that all had the same weights was not seen"


def _told(held: Sequence[Holding]) -> Iterator[str]:
    ranks: dict[tuple[int, int], list[int]] = {}  # that have the same steps
    for holding in held:
        steps = holding.landings()
        ranks.setdefault((min(steps), max(steps)), []).append(holding.rank)
    for (first, last), found in ranks.items():
        who = f"rank {found[0]} has" if len(found) == 1 else f"ranks {_listed(found)} have"
        yield f"{who} steps {first} to {last}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
