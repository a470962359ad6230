"""Run it, kill it (Ctrl-C, kill -9), run it again: a loop that accelerate has prepared goes on at the batch where it stopped.

    python examples/accelerate_loop.py
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 100 examples/accelerate_loop.py

Handwritten digits of scikit-learn; needs accelerate.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch.trainers.accelerate import log_prepared

EPOCHS = 12

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

log = log_prepared(accelerator, "runs/accelerate", model, optimizer, loader, checkpoint_every=100)
accelerator.print(log.track(scheduler=scheduler).recover(), flush=True)
for epoch in log.epochs(EPOCHS):
    for x, y in epoch:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        log.log_scalars(loss=loss)
    accelerator.print(f"epoch {epoch}: loss {log.scalars['loss'][1][-1]:.4f}", flush=True)
log.close()
accelerator.print(f"done: {len(log.scalars['loss'][1])} losses, however often it was killed")
accelerator.end_training()
