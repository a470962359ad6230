"""`python -m tests.alluxio.cluster`: a cluster to try things on, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from . import Cluster, Missing, Settings
from .settings import STANDARD_PORTS, free_ports


def main() -> None:
    """See the module."""
    words = argparse.ArgumentParser(prog="python -m tests.alluxio.cluster", description=__doc__)
    words.add_argument("--home", type=Path, help="keep everything in this folder (default: a temporary one)")
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--memory", default="1GB", help="of each worker (default: %(default)s)")
    words.add_argument("--free-ports", action="store_true", help="any free ports instead of Alluxio's usual ones")
    words.add_argument("--impatient", action="store_true", help="as in the tests: notice the dead within seconds")
    asked = words.parse_args()
    ports = free_ports() if asked.free_ports else STANDARD_PORTS
    settings = Settings(workers=asked.workers, memory=asked.memory, is_impatient=asked.impatient, ports=ports)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("Starting; the first time, Maven fetches the jars: a minute or more.", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="tranlogs-alluxio-") as temporary:
        try:
            with Cluster(asked.home or Path(temporary), settings) as cluster:
                print(f"{cluster.url('/tranlogs')}\nCtrl-C stops it.", flush=True)
                signal.pause()
        except KeyboardInterrupt:
            pass
        except Missing as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
