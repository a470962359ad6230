"""One of two processes that train together without torchrun, until the second one hangs and the first waits for it.

    elastic_child.py RUN STEPS HANGS

It trains to STEPS. Where HANGS is 1, rank 1 then stops itself and rank 0 enters one more step, whose sum never comes.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tranlogs_torch import LoggedOptimizer


def main(run: str, until: int, hangs: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(4, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LoggedOptimizer(inner, run, model, segment_bytes=1 << 20, grace_seconds=60.0 if dist.get_rank() == 0 else 0.5)
    print("recovered", optimizer.recover().step, flush=True)
    for step in optimizer.steps(until + hangs):
        if step == until:
            print("ready", flush=True)
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")
