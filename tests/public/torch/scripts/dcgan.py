"""In the style of the DCGAN example: two optimizers, a fixed noise whose samples are saved, losses of both in each line."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPOCHS, NOISE = 6, 5


def weights_init(module: nn.Module) -> None:
    """Initialize as the paper does."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def train(job: Job) -> None:
    """Train; the noise of the samples is drawn between `recover()` and the loop."""
    seed()
    loader = DataLoader(TensorDataset(torch.randn(24, 1, 8, 8)), batch_size=4, shuffle=True)
    generator = nn.Sequential(
        nn.ConvTranspose2d(NOISE, 4, 4, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(True),
        nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1, bias=False),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4, 1, 4),
        nn.Sigmoid(),
    )
    generator.apply(weights_init)
    critic.apply(weights_init)
    models = {"generator": generator, "critic": critic}
    optimizer_d = job.wrap(torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999)), models)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_g = job.add_optimizer(optimizer_d, optimizer_g, "generator")
    job.start(optimizer_d, loader=loader)
    fixed_noise, criterion = torch.randn(3, NOISE, 1, 1), nn.BCELoss()
    for epoch in optimizer_d.epochs(EPOCHS, loader):
        for i, (real,) in epoch.enumerate():
            critic.zero_grad()
            label = torch.full((len(real),), 1.0)
            loss_real = criterion(critic(real).view(-1), label)
            loss_real.backward()
            fake = generator(torch.randn(len(real), NOISE, 1, 1))
            label.fill_(0.0)
            loss_fake = criterion(critic(fake.detach()).view(-1), label)
            loss_fake.backward()
            optimizer_d.step()
            job.at("between two steps")
            generator.zero_grad()
            label.fill_(1.0)
            loss = criterion(critic(fake).view(-1), label)
            loss.backward()
            optimizer_g.step()
            job.at("batch")
            job.print(f"[{int(epoch)}/{EPOCHS}][{i}] D {loss_real.item() + loss_fake.item()} G {loss.item()}")
            if i % 3 == 0:
                with torch.no_grad():
                    torch.save(generator(fixed_noise), job.files / f"fake_{int(epoch)}_{i}.pt")
        job.at("epoch end")
        torch.save(generator.state_dict(), job.files / f"generator_{int(epoch)}.pth")
    job.keep(generator=generator, critic=critic, d=optimizer_d, g=optimizer_g, noise=fixed_noise)
    optimizer_d.close()
