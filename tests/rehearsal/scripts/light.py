"""Lightning."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch.trainers.lightning import TranLogsLightningCallback


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch, number):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        print(f"step {self.global_step}: loss {loss.item():.6f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


pl.seed_everything(0, verbose=False)
x = torch.randn(96, 8)
trainer = pl.Trainer(
    max_epochs=20,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[TranLogsLightningCallback("runs/lightning")],
)
trainer.fit(Net(), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True))
