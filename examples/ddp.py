"""Several processes train one model (DistributedDataParallel); kill any of them, and all go on at the step where they stopped.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 100 examples/ddp.py

torchrun starts them again by itself. After Ctrl-C, the same command goes on where they stopped. Needs scikit-learn, for its
handwritten digits.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tranlogs_torch import LoggedOptimizer

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
dataset = TensorDataset(images, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)

device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(rank)  # each rank drops out other units; DistributedDataParallel gives all the weights of rank 0
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
ddp = DistributedDataParallel(model.to(device))

optimizer = LoggedOptimizer(torch.optim.AdamW(ddp.parameters(), lr=1e-3), run="runs/ddp", model=ddp, checkpoint_every=100)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
report = optimizer.track(scheduler=scheduler, loader=loader).recover()
if rank == 0:
    print(report, flush=True)

for epoch in optimizer.epochs(20):
    sampler.set_epoch(epoch)
    for x, y in epoch:
        loss = nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.log_scalars(loss=loss)
    if rank == 0:
        print(f"epoch {epoch}: loss {optimizer.scalars['loss'][1][-1]:.4f}", flush=True)

optimizer.close()
if rank == 0:
    model.eval()
    with torch.no_grad():
        right = (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
    print(f"done: {right:.4f} of the digits are told right", flush=True)
dist.destroy_process_group()
