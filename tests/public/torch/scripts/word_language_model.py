"""In the style of the word language model: an LSTM whose hidden state goes on from batch to batch, a rate that is divided."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tests.kills.pytorch import Job
from tests.torch.nets import seed

EPOCHS, LENGTH, WORDS, WIDTH, ROWS = 6, 5, 17, 8, 3
Hidden = tuple[torch.Tensor, torch.Tensor]


class RNN(nn.Module):
    """An LSTM with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.drop = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.2)
        self.rnn, self.decoder = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2), nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor, hidden: Hidden) -> tuple[torch.Tensor, Hidden]:
        found, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(found)).flatten(0, 1), hidden


def zeros() -> Hidden:
    """Return the hidden state with which a text begins."""
    return torch.zeros(2, ROWS, WIDTH), torch.zeros(2, ROWS, WIDTH)


def evaluate(job: Job, model: RNN, data: torch.Tensor) -> float:
    """Return the loss over a text."""
    model.eval()
    total, hidden = 0.0, zeros()
    with torch.no_grad():
        for start in range(0, len(data) - 1 - LENGTH, LENGTH):
            found, hidden = model(data[start : start + LENGTH], hidden)
            total += nn.functional.cross_entropy(found, data[start + 1 : start + 1 + LENGTH].flatten()).item()
            job.at("validation")
    return total


def train(job: Job, *, remembers: bool = True) -> None:
    """Train; the places in the text are a list of numbers that a loader gives."""
    seed()
    words = (torch.arange(180) ** 2 // 3) % WORDS
    data, held = words[:150].view(ROWS, -1).t().contiguous(), words[60:].view(ROWS, -1).t().contiguous()
    places = torch.utils.data.DataLoader(list(range(0, len(data) - 1 - LENGTH, LENGTH)), batch_size=None)
    model = RNN()
    optimizer = job.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
    state = (optimizer.remember if remembers else SimpleNamespace)(hidden=zeros(), best=1e9, total=0.0)
    job.start(optimizer, places=places)
    for epoch in optimizer.epochs(EPOCHS, places):
        model.train()
        state.hidden, state.total = zeros(), 0.0
        for start in epoch:
            hidden = (state.hidden[0].detach(), state.hidden[1].detach())
            optimizer.zero_grad()
            found, state.hidden = model(data[start : start + LENGTH], hidden)
            loss = nn.functional.cross_entropy(found, data[start + 1 : start + 1 + LENGTH].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            job.at("batch")
            optimizer.step()
            state.total += loss.item()
        job.at("epoch end")
        val_loss = evaluate(job, model, held)
        job.print(f"end of epoch {int(epoch)}: loss {state.total}, valid loss {val_loss}")
        if val_loss < state.best:
            torch.save(model.state_dict(), job.files / "model.pt")
            state.best = val_loss
        else:
            for group in optimizer.param_groups:
                group["lr"] /= 4.0
        job.at("epoch end")
    job.keep(model=model, optimizer=optimizer, state=state)
    optimizer.close()
