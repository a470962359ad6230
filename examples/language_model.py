"""A recurrent language model. Run it, kill it (Ctrl-C, kill -9), run it again: it goes on at its batch, with its hidden state.

    python examples/language_model.py

The hidden state of the LSTM is carried from batch to batch, and a learning rate is divided where validation got no better.
`remember` keeps the hidden state and the best loss; the rate is the optimizer's and comes back with it.
"""

import math
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tranlogs_torch import LoggedOptimizer

EPOCHS = 6
LETTERS = 72000
ROWS, LENGTH, WIDTH = 16, 32, 96

torch.manual_seed(4)
text = torch.tensor(list("".join(topics.values()).encode("ascii", "replace")))
train_text = text[:LETTERS].view(ROWS, -1).t().contiguous()
val_text = text[-LETTERS // 4 :].view(ROWS, -1).t().contiguous()
loader = DataLoader(range(0, len(train_text) - 1 - LENGTH, LENGTH), batch_size=None)  # places in the text

Hidden = tuple[torch.Tensor, torch.Tensor]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(128, WIDTH), nn.Dropout(0.1)
        self.lstm, self.head = nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, 128)

    def forward(self, x: torch.Tensor, hidden: Hidden) -> tuple[torch.Tensor, Hidden]:
        found, hidden = self.lstm(self.drop(self.embedding(x)), hidden)
        return self.head(found), hidden


def loss_at(place: int, text: torch.Tensor, hidden: Hidden) -> tuple[torch.Tensor, Hidden]:
    found, hidden = model(text[place : place + LENGTH], hidden)
    return F.cross_entropy(found.flatten(0, 1), text[place + 1 : place + 1 + LENGTH].flatten()), hidden


def zeros() -> Hidden:
    return torch.zeros(1, ROWS, WIDTH), torch.zeros(1, ROWS, WIDTH)


@torch.no_grad()
def validate() -> float:
    model.eval()
    total, hidden, places = 0.0, zeros(), range(0, len(val_text) - 1 - LENGTH, LENGTH)
    for place in places:
        loss, hidden = loss_at(place, val_text, hidden)
        total += loss.item()
    model.train()
    return total / len(places)


model = Model()
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=8.0), run="runs/language-model", model=model)
state = optimizer.remember(hidden=zeros(), best=math.inf)
print(optimizer.track(loader=loader).recover(), flush=True)

for epoch in optimizer.epochs(EPOCHS):
    state.hidden = zeros()  # in an epoch that a crash has interrupted, the hidden state goes on from where it was
    for i, place in epoch.enumerate():
        optimizer.zero_grad()
        loss, (h, c) = loss_at(place, train_text, state.hidden)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        state.hidden = h.detach(), c.detach()
        if i % 40 == 0:
            print(f"epoch {epoch} [{i}/{len(epoch)}]: loss {loss.item():.4f}", flush=True)
    val_loss = validate()
    if val_loss < 0.99 * state.best:
        state.best = val_loss
    else:
        for group in optimizer.param_groups:
            group["lr"] /= 4
    print(f"epoch {epoch}: validation loss {val_loss:.4f}, rate {optimizer.param_groups[0]['lr']}", flush=True)
optimizer.close()
print(f"done: best validation loss {state.best:.4f}, however often it was killed")
