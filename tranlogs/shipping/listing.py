"""Listing of the runs in a store, given only its address."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..base.errors import CorruptObject, UnknownFormat, UsageError
from ..stores import STALL_SECONDS, Store, TimeoutStore, open_store, split_url
from .manifest import MANIFESTS, Manifest, read_newest
from .plan import find_stored_step, list_contents


@dataclass(frozen=True, slots=True)
class RunListing:
    """A run in a store; its address is `URL/name`. `ranks` is the number of its journals there.

    `step` is the step that all journals reach, None if one of them has no checkpoint in the store yet. `host` wrote the newest
    manifest, at the time `at` in seconds since 1970. `problems` tells what could not be read, one sentence each.
    """

    name: str
    ranks: int
    step: int | None
    nbytes: int
    at: float
    host: str
    problems: tuple[str, ...]


def find_run(url: str) -> tuple[str, list[str]]:
    """Split the address of a run into the store's address and the run's journals in that store ("RUN/rank0" and so on).

    The address may also be that of a folder that contains one run.

    Raises:
        StoreRefused: the address is wrong, see `open_store`.
        StoreUnavailable: the store does not answer.
        UsageError: the store holds no run at this address, or several.
    """
    base, name = split_url(url)
    with TimeoutStore(open_store(base), STALL_SECONDS) as store:
        store.check_root()
        found = set(_find_prefixes(store, name))
    runs = {prefix.rpartition("/")[0] for prefix in found}
    if not found:
        raise UsageError(f"{url}: the store holds no run at this address; `tranlogs status URL` lists the runs of a store")
    if len(runs) > 1:
        names = ", ".join(sorted(run.removeprefix(f"{name}/") for run in runs))
        raise UsageError(f"{url} holds several runs: {names}. Use the address of one of them; `tranlogs status URL` lists them")
    if "" in runs:
        raise UsageError(f"{url} is one rank of a run; use the address of the run: {base}")
    if runs != {name}:  # the address of a folder that contains the run
        base, found = url, {prefix.removeprefix(f"{name}/") for prefix in found}
    return base, sorted(found, key=lambda prefix: (len(prefix), prefix))


def list_runs(url: str) -> list[RunListing]:
    """Return all runs of a store, by name.

    Raises:
        StoreRefused: the address is wrong, see `open_store`.
        StoreUnavailable: the store does not answer.
    """
    with TimeoutStore(open_store(url), STALL_SECONDS) as store:
        store.check_root()
        places = defaultdict[str, list[str]](list)
        for prefix in _find_prefixes(store):
            places[prefix.rpartition("/")[0]].append(prefix)
        return [_describe(store, name, ranks) for name, ranks in places.items()]


def _find_prefixes(store: Store, folder: str = "") -> list[str]:
    """Return the journals in a folder of a store: "RUN/rank0" and so on."""
    return sorted(
        {name.partition(f"/{MANIFESTS}/")[0] for name in store.names(folder) if f"/{MANIFESTS}/" in name},
        key=lambda prefix: (prefix.rpartition("/")[0], len(prefix), prefix),
    )


def _describe(store: Store, name: str, places: list[str]) -> RunListing:
    found: list[Manifest] = []
    problems: list[str] = []
    for prefix in places:
        try:
            newest, damaged = read_newest(store, prefix)
        except (CorruptObject, UnknownFormat) as error:
            newest, damaged = None, [str(error)]
        problems += damaged
        found += [] if newest is None else [newest]
    last = max(found, key=lambda manifest: manifest.at, default=None)
    has_all = len(found) == len(places) and all(manifest.checkpoints for manifest in found)
    step = min((find_stored_step(manifest, list_contents(manifest)) for manifest in found), default=0) if has_all else None
    nbytes = sum(item.nbytes for manifest in found for item in manifest.shipped.values())
    return RunListing(
        name, len(places), step, nbytes, 0.0 if last is None else last.at, "" if last is None else last.host, tuple(problems)
    )
