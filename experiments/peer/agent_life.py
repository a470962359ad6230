"""The trainer that an agent starts: what it does is in a file for its first life, and in another one for those after it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from peer.life import Life, live

if __name__ == "__main__":
    place, first, second = map(Path, sys.argv[1:])
    plan = first if first.exists() else second
    fields = json.loads(plan.read_text())
    first.unlink(missing_ok=True)
    live(Life(**{**fields, "folder": Path(fields["folder"])}), place / "events")
