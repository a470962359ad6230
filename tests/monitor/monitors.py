"""Monitors in processes of their own, which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("monitor_child.py")


class Monitors:
    """Forks monitors, one at a time, and kills them."""

    def __init__(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        )
        self._pid = 0

    def start(
        self,
        root: Path,
        budget: int,
        *,
        failpoints: str = "",
        interval: float = 0.005,
        store: Path | None = None,
        compacts: bool = False,
        **limits: Any,
    ) -> None:
        """Watch from here on, ship to `store` if there is one, and make checkpoints from the log if it `compacts`."""
        self._say(
            {
                "root": str(root),
                "budget": budget,
                "failpoints": failpoints,
                "interval": interval,
                "limits": limits,
                "store": str(store) if store is not None else "",
                "compacts": compacts,
            }
        )
        self._pid = int(self._line()[1])

    def kill(self) -> int:
        """SIGKILL, if it is still there; its exit status."""
        os.kill(self._pid, signal.SIGKILL)  # a dead one is not reaped yet, so that this hits nobody else
        self._pid = 0
        self._say({})
        return int(self._line()[1])

    def close(self) -> None:
        if self._pid:
            self.kill()
        self.process.communicate()

    def _say(self, content: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(content).encode() + b"\n")
        self.process.stdin.flush()

    def _line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().split()
