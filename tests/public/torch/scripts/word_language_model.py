"""In the style of the word language model: an LSTM whose hidden state goes on from batch to batch, a rate that is divided."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.public.proof import Job
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


class Memory:
    """What goes on from batch to batch: the hidden state, and the best loss."""

    def __init__(self) -> None:
        self.start()
        self.best, self.total = 1e9, 0.0

    def start(self) -> None:
        self.hidden = (torch.zeros(2, ROWS, WIDTH), torch.zeros(2, ROWS, WIDTH))

    def state_dict(self) -> dict[str, Any]:
        return {"hidden": list(self.hidden), "best": self.best, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hidden = (state["hidden"][0].clone(), state["hidden"][1].clone())
        self.best, self.total = state["best"], state["total"]


def evaluate(job: Job, model: RNN, data: torch.Tensor) -> float:
    """Return the loss over a text."""
    model.eval()
    total, hidden = 0.0, (torch.zeros(2, ROWS, WIDTH), torch.zeros(2, ROWS, WIDTH))
    with torch.no_grad():
        for start in range(0, len(data) - 1 - LENGTH, LENGTH):
            found, hidden = model(data[start : start + LENGTH], hidden)
            total += nn.functional.cross_entropy(found, data[start + 1 : start + 1 + LENGTH].flatten()).item()
            job.at("validation")
    return total


def train(job: Job, *, tracks: bool = True) -> None:
    """Train; the places in the text are a list of numbers that a loader gives."""
    seed()
    words = (torch.arange(180) ** 2 // 3) % WORDS
    data, held = words[:150].view(ROWS, -1).t().contiguous(), words[60:].view(ROWS, -1).t().contiguous()
    places = torch.utils.data.DataLoader(list(range(0, len(data) - 1 - LENGTH, LENGTH)), batch_size=None)
    model, memory = RNN(), Memory()
    optimizer = job.wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)
    job.start(optimizer, places=places, **({"memory": memory} if tracks else {}))
    for epoch in optimizer.epochs(EPOCHS, places):
        model.train()
        if epoch.batch == 0:
            memory.start()
            memory.total = 0.0
        for start in epoch:
            hidden = (memory.hidden[0].detach(), memory.hidden[1].detach())
            optimizer.zero_grad()
            found, memory.hidden = model(data[start : start + LENGTH], hidden)
            memory.hidden = (memory.hidden[0].detach(), memory.hidden[1].detach())
            loss = nn.functional.cross_entropy(found, data[start + 1 : start + 1 + LENGTH].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            job.at("batch")
            optimizer.step()
            memory.total += loss.item()
        job.at("epoch end")
        val_loss = evaluate(job, model, held)
        job.print(f"end of epoch {int(epoch)}: loss {memory.total}, valid loss {val_loss}")
        if val_loss < memory.best:
            torch.save(model.state_dict(), job.files / "model.pt")
            memory.best = val_loss
        else:
            for group in optimizer.param_groups:
                group["lr"] /= 4.0
        job.at("epoch end")
    job.keep(model=model, optimizer=optimizer, memory=memory)
    optimizer.close()
