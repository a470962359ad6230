"""What torchrun does, again and again in one process: its agent starts functions, forked from a server that has imported torch.

A line of JSON on stdin is a job: {"world", "restarts", "arguments"}; the answer on stdout says how it ended. The environment
is the one that docs/many-processes.md asks for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import uuid

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.optim.swa_utils",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "tests.distributed.child",
    "tests.distributed.sharded",
]


def entry(arguments: list[str]) -> None:
    """A worker."""
    from tests.distributed import child

    child.main(arguments)


def launch(world: int, restarts: int, arguments: list[str]) -> str:
    """Run a job to its end; says what went wrong."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="forkserver",
    )
    try:
        elastic_launch(config, entry)(arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what workers print goes where their errors go
    os.environ.update(ENVIRONMENT)
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    for line in sys.stdin:
        job = json.loads(line)
        failure = launch(job["world"], job["restarts"], job["arguments"])
        print(json.dumps({"failure": failure}), file=answers, flush=True)


if __name__ == "__main__":
    main()
