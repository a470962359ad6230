"""A GAN. Run it, kill it (Ctrl-C, kill -9), run it again: both networks go on at the batch where they stopped.

    python examples/gan.py

The generator learns to draw handwritten digits of scikit-learn. It takes a step at every second batch: the number of the batch
comes from `enumerate=True`, since plain `enumerate` would begin at 0 after a crash, and train it at the wrong batches.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

BATCHES = 1500
NOISE, LOGGED_EVERY = 16, 100

torch.manual_seed(2)
digits = torch.tensor(load_digits().data / 8 - 1, dtype=torch.float32)
loader = DataLoader(TensorDataset(digits), batch_size=64, shuffle=True, drop_last=True)

generator = nn.Sequential(nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1))
loss_of = nn.BCEWithLogitsLoss()

optimizer_d = LoggedOptimizer(
    torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
    run="runs/gan",
    model={"generator": generator, "discriminator": discriminator},
    name="discriminator",
)
adam_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
optimizer_g = optimizer_d.add_optimizer(adam_g, name="generator")
fixed_noise = torch.randn(8, NOISE)  # drawn before recover(): each start draws the same
state = optimizer_d.remember(loss_g=0.0, mean_d=0.0)
print(optimizer_d.track(loader=loader).recover(), flush=True)

for i, (real,) in optimizer_d.batches(loader, until=BATCHES, enumerate=True):
    fake = generator(torch.randn(len(real), NOISE))
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

    optimizer_d.zero_grad()
    loss_d = loss_of(discriminator(real), ones) + loss_of(discriminator(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()
    state.mean_d = 0.98 * state.mean_d + 0.02 * loss_d.item()

    if i % 2 == 1:
        optimizer_g.zero_grad()
        loss_g = loss_of(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
        state.loss_g = loss_g.item()  # printed in a later turn

    if i % LOGGED_EVERY == 0:
        print(f"batch {i}: discriminator {state.mean_d:.4f}, generator {state.loss_g:.4f}", flush=True)

optimizer_d.close()
generator.eval()
for row in (generator(fixed_noise)[0].detach().view(8, 8) > 0).int().tolist():
    print("".join(" #"[dot] * 2 for dot in row))
print(f"done: discriminator {state.mean_d:.4f}, generator {state.loss_g:.4f}, however often it was killed")
