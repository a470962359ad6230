"""Match the names of a source's tensors with the names of a model's. Pure.

Wrappers put prefixes before names (`module.` of DDP, `_orig_mod.` of torch.compile, `model.` of trainers). If the names do not
match as they are, they are tried without their prefixes, and with the model's. Such a reading is taken only if everything
matches under it, and no other reading matches everything differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..state.naming import clean_names

_PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True, slots=True)
class Match:
    """The result of matching.

    Attributes:
        names: the model's names by the source's.
        missing: names of the model that the source lacks.
        unexpected: names of the source that the model lacks.
        is_ambiguous: True if everything matches under another reading, too, and differently.
    """

    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    is_ambiguous: bool = False

    @property
    def is_whole(self) -> bool:
        """True if everything matches."""
        return bool(self.names) and not (self.missing or self.unexpected or self.is_ambiguous)


def match_names(
    source: Iterable[str],
    model: Iterable[str],
    *,
    same: Callable[[str], object] = str,
    may_lack: Sequence[str] = (),
    may_drop: Sequence[str] = (),
) -> Match:
    """Match names.

    Args:
        source: names in the source.
        model: names in the model.
        same: maps names of the model that are one tensor (tied weights) to the same value: one of them is enough.
        may_lack: patterns (`head.*`) of the model's names that the source may lack.
        may_drop: patterns of the source's names that may be left out.
    """
    wanted = dict.fromkeys(model)
    matches = [_under(reading, wanted, same, may_lack, may_drop) for reading in _readings(list(source), list(wanted))]
    whole = [match for match in matches if match.is_whole]
    if not whole:
        return min(matches, key=lambda match: len(match.missing) + len(match.unexpected))
    most = max(len(match.names) for match in whole)
    best = [match for match in whole if len(match.names) == most]
    if best[0] is matches[0] or all(match.names == best[0].names for match in best):  # the first reads them as they are
        return best[0]
    return replace(best[0], is_ambiguous=True)


def _under(
    reading: Mapping[str, str],
    wanted: Mapping[str, None],
    same: Callable[[str], object],
    may_lack: Sequence[str],
    may_drop: Sequence[str],
) -> Match:
    names = {name: read for name, read in reading.items() if read in wanted}
    there = {same(read) for read in names.values()}
    missing = [name for name in wanted if same(name) not in there and not _fits(name, may_lack)]
    strange = {name: read for name, read in reading.items() if read not in wanted}
    unexpected = [name for name, read in strange.items() if not (_fits(name, may_drop) or _fits(read, may_drop))]
    return Match(names, tuple(missing), tuple(unexpected))


def _readings(source: list[str], wanted: list[str]) -> Iterator[dict[str, str]]:
    """Yield readings of the source's names: each maps every name to the one that it may stand for. The first changes none."""
    yield dict(zip(source, source, strict=True))
    yield clean_names(source)
    for start in (source, list(clean_names(source).values())):
        names = start
        while prefix := _common(names):
            names = [name[len(prefix) :] for name in names]
            yield dict(zip(source, names, strict=True))
        lacking, rest = "", wanted
        while prefix := _common(rest):
            lacking, rest = lacking + prefix, [name[len(prefix) :] for name in rest]
            yield dict(zip(source, [lacking + name for name in start], strict=True))


def _common(names: Sequence[str]) -> str:
    return next((prefix for prefix in _PREFIXES if names and all(name.startswith(prefix) for name in names)), "")


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
