"""Opens a run, never takes a step, and ignores every signal that it can."""

import signal
import time

import torch

from tranlogs_torch import LoggedOptimizer

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
model = torch.nn.Linear(2, 1)
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run="runs/never", model=model, on_signal=None)
optimizer.recover()
while True:
    time.sleep(1)
