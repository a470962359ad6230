"""Which runs a store holds: for whoever has its address alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ...base.errors import CorruptObject, UnknownFormat
from ...stores import STALL_SECONDS, PatientStore, Store, open_store
from ..sending.plan import look_of, reach_of
from .manifest import MANIFESTS, Manifest, read_newest


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in a store.

    Attributes:
        name: `URL/name` is its address.
        ranks: how many journals it has.
        step: which all of them reach there; None if not all have come so far.
        nbytes: of their segments and checkpoints.
        at: when the newest manifest was written, in seconds since 1970.
        host: by which machine.
        problems: in words.
    """

    name: str
    ranks: int
    step: int | None
    nbytes: int
    at: float
    host: str
    problems: tuple[str, ...]


def places_in(store: Store, folder: str = "") -> list[str]:
    """The journals in a folder of a store: "RUN/rank0" and so on.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    return sorted(
        {name.partition(f"/{MANIFESTS}/")[0] for name in store.names(folder) if f"/{MANIFESTS}/" in name},
        key=lambda place: (place.rpartition("/")[0], len(place), place),
    )


def stored_runs(url: str) -> list[StoredRun]:
    """All runs of a store, by name.

    Raises:
        StoreRefused, StoreUnavailable: as `open_store` and the store say.
    """
    with PatientStore(open_store(url), STALL_SECONDS) as store:
        store.demand_place()
        places = defaultdict[str, list[str]](list)
        for place in places_in(store):
            places[place.rpartition("/")[0]].append(place)
        return [_stored(store, name, ranks) for name, ranks in places.items()]


def _stored(store: Store, name: str, places: list[str]) -> StoredRun:
    found: list[Manifest] = []
    problems: list[str] = []
    for place in places:
        try:
            newest, damaged = read_newest(store, place)
        except (CorruptObject, UnknownFormat) as error:
            newest, damaged = None, [str(error)]
        problems += damaged
        found += [] if newest is None else [newest]
    last = max(found, key=lambda manifest: manifest.at, default=None)
    has_all = len(found) == len(places) and all(manifest.checkpoints for manifest in found)
    step = min((reach_of(manifest, look_of(manifest)) for manifest in found), default=0) if has_all else None
    nbytes = sum(one.nbytes for manifest in found for one in manifest.shipped.values())
    return StoredRun(
        name, len(places), step, nbytes, 0.0 if last is None else last.at, "" if last is None else last.host, tuple(problems)
    )
