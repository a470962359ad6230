"""In the style of the siamese example: pairs that the data set draws at random, one net for both images, Adadelta."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.kills.pytorch import Job
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

EPOCHS = 5


class Matcher(Dataset):  # type: ignore[type-arg]
    """Draws an image, and another one of its class, or of another class: each time that an item is asked for."""

    def __init__(self, count: int, first: int) -> None:
        self.images, labels = digits(50, first=first)
        self.count = count
        self.grouped = {label: np.flatnonzero(labels.numpy() == label) for label in range(10)}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, float]:
        chosen = random.randint(0, 9)
        other = chosen if index % 2 == 0 else (chosen + random.randint(1, 9)) % 10
        first, second = np.random.choice(self.grouped[chosen]), np.random.choice(self.grouped[other])
        return self.images[first], self.images[second], float(index % 2 == 0)


class SiameseNetwork(nn.Module):
    """A net for each image of a pair, and one for what came out of both."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(288, 8), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc(torch.cat((self.body(first), self.body(second)), 1))
        return found.squeeze(1)


def train(job: Job) -> None:
    """Train; the test after each epoch draws its pairs anew."""
    seed()
    train_loader = DataLoader(Matcher(30, 0), batch_size=6, shuffle=True)
    test_loader = DataLoader(Matcher(12, 50), batch_size=6)
    model, criterion = SiameseNetwork(), nn.BCELoss()
    optimizer = job.wrap(torch.optim.Adadelta(model.parameters(), lr=1.0), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    job.start(optimizer, loader=train_loader, scheduler=scheduler)
    for epoch in optimizer.epochs(EPOCHS, train_loader):
        model.train()
        for i, (first, second, targets) in epoch.enumerate():
            optimizer.zero_grad()
            loss = criterion(model(first, second), targets.float())
            loss.backward()
            job.at("batch")
            optimizer.step()
            job.print(f"Train Epoch: {int(epoch)} [{i}/{len(epoch)}] Loss: {loss.item()}")
        model.eval()
        right = 0
        with torch.no_grad():
            for first, second, targets in test_loader:
                right += int((model(first, second).round() == targets).sum())
                job.at("test")
        job.print(f"Test set: {right} of 12")
        scheduler.step()
        job.at("epoch end")
    torch.save(model.state_dict(), job.files / "siamese_network.pt")
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()
