"""A classifier in the style of the MNIST example. Run it, kill it (Ctrl-C, kill -9), run it again: it goes on at its batch.

    python examples/digits_epochs.py

Handwritten digits of scikit-learn, epochs, validation after each, and the best weights so far, which `remember` keeps.
`epoch.enumerate()` has the true number of a batch where plain `enumerate` would begin at 0 after a crash.
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from tranlogs_torch import LoggedOptimizer

EPOCHS = 14
TRAINED = 1500
LOGGED_EVERY = 20

torch.manual_seed(1)
digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
train_data, test_data = random_split(TensorDataset(images, labels), [TRAINED, len(labels) - TRAINED])
train_loader = DataLoader(train_data, batch_size=32, shuffle=True)
test_loader = DataLoader(test_data, batch_size=100)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@torch.no_grad()
def test(model: nn.Module) -> float:
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)
    model.train()
    return right / len(test_data)


model = Net()
optimizer = LoggedOptimizer(torch.optim.Adadelta(model.parameters(), lr=0.5), run="runs/digits-epochs", model=model)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
state = optimizer.remember(best=0.0, best_weights=None, loss_of_epoch=0.0)
print(optimizer.track(scheduler=scheduler, loader=train_loader).recover(), flush=True)

for epoch in optimizer.epochs(EPOCHS):
    state.loss_of_epoch = 0.0  # in an epoch that a crash has interrupted, the sum goes on from where it was
    for i, (x, y) in epoch.enumerate():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        state.loss_of_epoch += loss.item()
        if i % LOGGED_EVERY == 0:
            print(f"epoch {epoch} [{i}/{len(epoch)}]: loss {loss.item():.4f}", flush=True)
    scheduler.step()
    accuracy = test(model)
    if accuracy > state.best:
        state.best, state.best_weights = accuracy, copy.deepcopy(model.state_dict())
    mean = state.loss_of_epoch / len(epoch)
    print(f"epoch {epoch}: mean loss {mean:.4f}, accuracy {accuracy:.4f}, best {state.best:.4f}", flush=True)
optimizer.close()
print(f"done: best accuracy {state.best:.4f}, however often it was killed")
