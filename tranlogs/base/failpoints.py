"""Fail points: named places in the code at which a test can kill the process or raise an error.

`TRANLOGS_FAILPOINTS="log.before_commit=kill@3,checkpoint.publish=enospc"` kills the process (SIGKILL) when it reaches the first
point for the third time, and raises ENOSPC whenever it reaches the second point. `@N` stands for the N-th time only, `@N+` for
the N-th time and all later ones. If the variable is not set, a fail point costs one look-up of a global name.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass

__all__ = ["POINTS", "hit"]

# All fail points, so that tests can try each of them.
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
    "log.rows",
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
            raise ValueError(f"TRANLOGS_FAILPOINTS: {part!r} contains an unknown point or action")
        rules[name] = _Rule(action, int(nth.rstrip("+") or 1), nth.endswith("+") or not nth)
    return rules


_lock = threading.Lock()
_rules = _parse(os.environ.get("TRANLOGS_FAILPOINTS", ""))


def hit(name: str) -> None:
    """Run the action that TRANLOGS_FAILPOINTS gives for a fail point; do nothing by default."""
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
