"""In the style of the VAE example: noise that the model draws, a test and a file of samples after each epoch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

EPOCHS = 5


class VAE(nn.Module):
    """Fully connected, with a hidden layer on each side."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 64)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        return self.decode(mu + torch.randn_like(logvar) * torch.exp(0.5 * logvar)), mu, logvar


def loss_function(found: torch.Tensor, x: torch.Tensor, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    """Return reconstruction and divergence, summed over all elements and batch."""
    entropy = F.binary_cross_entropy(found, x.view(-1, 64), reduction="sum")
    return entropy - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def train(job: Job) -> None:
    """Train; each epoch ends with a test and with samples, both of which draw random numbers."""
    seed()
    train_loader = DataLoader(digits(40)[0], batch_size=8, shuffle=True)  # type: ignore[arg-type]  # a tensor has rows
    test_loader = DataLoader(digits(16, first=40)[0], batch_size=8)  # type: ignore[arg-type]
    model = VAE()
    optimizer = job.wrap(torch.optim.Adam(model.parameters(), lr=1e-3), model)
    job.start(optimizer, loader=train_loader)
    for epoch in optimizer.epochs(EPOCHS, train_loader):
        model.train()
        for i, data in epoch.enumerate():
            optimizer.zero_grad()
            loss = loss_function(*((out := model(data))[0], data, *out[1:]))
            loss.backward()
            job.at("batch")
            optimizer.step()
            if i % 2 == 0:
                job.print(f"Train Epoch: {int(epoch)} [{i * len(data)}/40] Loss: {loss.item() / len(data)}")
        model.eval()
        with torch.no_grad():
            test_loss = 0.0
            for i, data in enumerate(test_loader):
                found, mu, logvar = model(data)
                test_loss += loss_function(found, data, mu, logvar).item()
                if i == 0:
                    torch.save(torch.cat([data[:4].view(4, 64), found[:4]]), job.files / f"reconstruction_{int(epoch)}.pt")
                job.at("test")
            job.print(f"====> Epoch: {int(epoch)} Test set loss: {test_loss / 16}")
            torch.save(model.decode(torch.randn(8, 4)), job.files / f"sample_{int(epoch)}.pt")
        job.at("epoch end")
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()
