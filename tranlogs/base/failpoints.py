"""Fault points: named places of the write path where a test lets the process die or an error happen.

`TRANLOGS_FAILPOINTS="log.before_commit=kill@3,checkpoint.publish=enospc"` kills the process (SIGKILL) at the third time the
point is reached and raises ENOSPC at each time of the other (`@N` = the N-th time only, `@N+` = from the N-th on).
Without the variable a point costs one global look-up.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass

__all__ = ["POINTS", "hit"]

# Every point of the product, so that tests can walk over all of them.
POINTS = (
    "log.begin",
    "log.write",
    "log.before_commit",
    "log.after_commit",
    "log.roll",
    "log.prepare",
    "log.recycle",
    "log.seal",
    "log.sync",
    "log.index",
    "log.retire",
    "log.unlink",
    "catalog.before_commit",
    "catalog.after_commit",
    "checkpoint.snapshot",
    "checkpoint.state",
    "checkpoint.meta",
    "checkpoint.manifest",
    "checkpoint.publish",
    "checkpoint.published",
    "checkpoint.delete",
    "shadow.publish",
    "shadow.renamed",
    "boundary.before",
    "boundary.after",
    "recovery.restored",
    "recovery.replayed",
    "ship.sent",
    "ship.manifest",
    "ship.published",
    "ship.marks",
    "pull.publish",
)

_ERRNO = {"enospc": errno.ENOSPC, "eio": errno.EIO}


@dataclass(slots=True)
class _Rule:
    action: str
    nth: int
    onwards: bool
    count: int = 0


def _parse(text: str) -> dict[str, _Rule]:
    rules = {}
    for part in filter(None, text.split(",")):
        name, _, what = part.partition("=")
        action, _, nth = what.partition("@")
        if name not in POINTS or action not in ("kill", *_ERRNO):
            raise ValueError(f"TRANLOGS_FAILPOINTS: {part!r} names no known point or action")
        rules[name] = _Rule(action, int(nth.rstrip("+") or 1), nth.endswith("+") or not nth)
    return rules


_lock = threading.Lock()
_rules = _parse(os.environ.get("TRANLOGS_FAILPOINTS", ""))


def hit(name: str) -> None:
    """Do what the environment asks for at this point; nothing by default."""
    if not _rules:
        return
    rule = _rules.get(name)
    if rule is None:
        return
    with _lock:
        rule.count += 1
        due = rule.count == rule.nth or (rule.onwards and rule.count > rule.nth)
    if due and rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if due:
        code = _ERRNO[rule.action]
        raise OSError(code, os.strerror(code), f"failpoint {name}")
