"""Replacement of a journal that is missing on this machine by the copy in the store."""

from __future__ import annotations

import logging

from ...base.errors import CorruptObject, NotARun, StoreUnavailable
from ...journal import JournalPaths
from ...stores import STALL_SECONDS, TimeoutStore, open_store
from ..manifest import journal_prefix, read_newest
from .pull import Progress, PullResult, pull

_log = logging.getLogger("tranlogs")


def fetch_missing_journal(url: str | None, paths: JournalPaths, progress: Progress | None = None) -> PullResult | None:
    """Fetch a journal from the store if it is missing on this machine.

    Returns:
        The result; None if the journal exists on this machine, or if the store does not hold it.

    Raises:
        StoreUnavailable: the store does not answer. A run that may exist in the store must not start from step 0.
        StoreRefused: the store's address is wrong.
        CorruptObject: the store holds the journal, but none of its checkpoints can be read.
    """
    if url is None or paths.folder.exists():
        return None
    with TimeoutStore(open_store(url), STALL_SECONDS) as store:
        prefix = journal_prefix(paths)
        try:
            store.check_root()
            newest, damaged = read_newest(store, prefix)
        except StoreUnavailable as error:
            why = f"{error.why}. {paths.folder} does not exist, and the store may hold the run: nothing was started"
            raise StoreUnavailable(error.url, why) from None
        if newest is None and damaged:  # The store holds the run, which must not start from step 0.
            raise CorruptObject(f"{url}/{prefix}", f"none of its manifests can be read: {'; '.join(damaged)}")
        if newest is None:
            return None
        try:
            found = pull(store, prefix, paths.folder, progress=progress)
        except NotARun:  # The first checkpoint was never uploaded.
            return None
    _log.warning("%s: fetched from %s/%s, up to step %d", paths.folder, url, prefix, found.step)
    for note in found.notes:
        _log.warning("%s: %s", paths.folder, note)
    return found
