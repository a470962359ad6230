"""Which tensor of a source belongs to which of the model: by name. Pure.

Wrappers put prefixes before names (`module.` of DDP, `_orig_mod.` of torch.compile, `model.` of trainers), so names that do not
fit as they are are tried without them, or with one that the model's own have. Such a reading counts only if everything fits
under it, and under no other one differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..naming import clean_names

_PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True, slots=True)
class Match:
    """What fits.

    Attributes:
        names: of the model, by the source's.
        missing: of the model, without a counterpart.
        unexpected: of the source, without one.
        is_ambiguous: whether there is another reading under which everything fits.
    """

    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    is_ambiguous: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether everything fits."""
        return bool(self.names) and not (self.missing or self.unexpected or self.is_ambiguous)


def match_names(source: Iterable[str], model: Iterable[str], *, same: Callable[[str], object] = str,
                may_lack: Sequence[str] = (), may_drop: Sequence[str] = ()) -> Match:  # fmt: skip
    """Match names.

    Args:
        source: names in the source.
        model: names that the model wants.
        same: gives the same for names of the model that are one tensor (tied weights): one of them is enough.
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


def _under(reading: Mapping[str, str], wanted: Mapping[str, None], same: Callable[[str], object],
           may_lack: Sequence[str], may_drop: Sequence[str]) -> Match:  # fmt: skip
    names = {name: read for name, read in reading.items() if read in wanted}
    there = {same(read) for read in names.values()}
    missing = [name for name in wanted if same(name) not in there and not _fits(name, may_lack)]
    strange = {name: read for name, read in reading.items() if read not in wanted}
    unexpected = [name for name, read in strange.items() if not (_fits(name, may_drop) or _fits(read, may_drop))]
    return Match(names, tuple(missing), tuple(unexpected))


def _readings(source: list[str], wanted: list[str]) -> Iterator[dict[str, str]]:
    """Ways to read the source's names, as they are first; each gives every name another one."""
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
