"""Run it, kill it (Ctrl-C, kill -9), run it again: Lightning goes on at the batch where it stopped.

    python examples/lightning_trainer.py

Handwritten digits of scikit-learn; needs lightning.
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch.trainers.lightning import TranLogsLightningCallback

EPOCHS = 15


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.log("right", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch}: {self.trainer.callback_metrics['right']:.4f} are told right", flush=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)}


pl.seed_everything(0, verbose=False)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
train, test = torch.utils.data.random_split(data, [1497, 300])
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[TranLogsLightningCallback("runs/lightning", checkpoint_every=100)],
)
trainer.fit(Digits(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=300))
print(f"done: {trainer.global_step} steps, however often it was killed")
