"""One kill under each trainer's own checkpoints and under TranLogs: steps lost, and whether the end is that of an unkilled run.

    python experiments/trainers_own.py [--quick] [--only huggingface] [--out FILE]

Each training has 60 steps (20 an epoch), a checkpoint every ten, and dies by SIGKILL as step 38 begins; then it is started
again as its documentation says. Digits of scikit-learn, a network with dropout, shuffled batches; one process, on the CPU.
--quick takes one trainer. Steps are counted by the optimizer, not by the trainer's own notion of where it is.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from harness import Circumstances, ask_child, command_line, write_results
from torch import nn

STEPS, EPOCHS, EVERY, DEATH, BATCH = 60, 3, 10, 37, 10
TRAINERS = ("huggingface", "lightning", "accelerate", "keras")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    digits, count = load_digits(), STEPS // EPOCHS * BATCH
    return torch.tensor(digits.data[:count] / 16, dtype=torch.float32), torch.tensor(digits.target[:count])


def digest(model: nn.Module, optimizer: Any) -> str:
    """Of all bits of weights, buffers and optimizer state."""
    found = xxhash.xxh3_64()
    state = [value for p in model.parameters() for value in optimizer.state[p].values()]
    for tensor in [*model.state_dict().values(), *state]:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def die(step: int, kill: bool) -> None:
    if kill and step == DEATH:
        os.kill(os.getpid(), signal.SIGKILL)


def huggingface(folder: Path, own: bool, log: bool, kill: bool) -> dict[str, Any]:
    import transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    begun: list[int] = []  # not an attribute: what callbacks and modules keep comes back, too

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            begun.append(state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            die(state.global_step, kill)

    transformers.set_seed(0)
    callbacks: list[Any] = [Watch()]
    if log:
        from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

        callbacks.append(TranLogsTrainerCallback(folder / "run", checkpoint_every=EVERY, verbose=False))
    arguments = TrainingArguments(
        str(folder / "own"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        save_strategy="steps" if own else "no",
        save_steps=EVERY,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
    )
    x, y = samples()
    data = [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]
    trainer = Trainer(Net(), arguments, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=own and any((folder / "own").glob("checkpoint-*")))
    return {"begun_at": begun[0], "digest": digest(trainer.model, trainer.optimizer.optimizer)}


def lightning(folder: Path, own: bool, log: bool, kill: bool) -> dict[str, Any]:
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    begun: list[int] = []

    class Digits(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def on_train_start(self) -> None:
            begun.append(self.global_step)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            die(self.global_step, kill)
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    pl.seed_everything(0, verbose=False)
    callbacks: list[Any] = []
    if own:
        callbacks.append(pl.callbacks.ModelCheckpoint(folder / "own", every_n_train_steps=EVERY, save_last=True))
    if log:
        from tranlogs_torch.trainers.lightning import TranLogsLightningCallback

        callbacks.append(TranLogsLightningCallback(folder / "run", checkpoint_every=EVERY, verbose=False))
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=own,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model, last = Digits(), folder / "own" / "last.ckpt"
    loader = DataLoader(TensorDataset(*samples()), batch_size=BATCH, shuffle=True)
    trainer.fit(model, loader, ckpt_path=str(last) if last.exists() else None, weights_only=False)
    return {"begun_at": begun[0], "digest": digest(model, trainer.optimizers[0])}


def accelerate(folder: Path, own: bool, log: bool, kill: bool) -> dict[str, Any]:
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import ProjectConfiguration, set_seed
    from torch.utils.data import DataLoader, TensorDataset

    project = ProjectConfiguration(str(folder / "own"), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    set_seed(0)
    net = network()
    plain = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(plain, STEPS)
    loader = DataLoader(TensorDataset(*samples()), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(net, plain, loader, scheduler)
    step = 0

    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal step
        die(step, kill)
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if own and step % EVERY == 0:
            accelerator.save_state()

    if log:
        from tranlogs_torch.trainers.accelerate import log_prepared

        logged = log_prepared(accelerator, folder / "run", model, optimizer, loader, checkpoint_every=EVERY)
        begun_at = step = logged.track(scheduler=scheduler).recover().step
        for batch in logged.batches(loader, until=STEPS):
            body(*batch)
        logged.close()
        return {"begun_at": begun_at, "digest": digest(net, plain)}
    saved = list((folder / "own" / "checkpoints").glob("checkpoint_*"))
    if saved:
        accelerator.load_state()
        step = EVERY * len(saved)
        project.iteration = len(saved)
    begun_at = step
    for epoch in range(step // (STEPS // EPOCHS), EPOCHS):
        loader.set_epoch(epoch)
        for batch in skip_first_batches(loader, step % (STEPS // EPOCHS)) if step % (STEPS // EPOCHS) else loader:
            body(*batch)
    return {"begun_at": begun_at, "digest": digest(net, plain)}


def keras(folder: Path, own: bool, log: bool, kill: bool) -> dict[str, Any]:
    import keras
    import numpy as np

    begun: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begun.append(int(self.model.optimizer.iterations))
            die(begun[-1], kill)

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(64),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    model.compile(keras.optimizers.AdamW(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks: list[Any] = []
    if own:
        callbacks.append(keras.callbacks.BackupAndRestore(str(folder / "own"), save_freq=EVERY))
    if log:
        from tranlogs_keras import TranLogsCallback

        callbacks.append(TranLogsCallback(folder / "run", checkpoint_every=EVERY, data_order="keras", verbose=False))
    watch = Watch()
    x, y = (tensor.numpy() for tensor in samples())
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=True, verbose=0, callbacks=[*callbacks, watch])
    found = xxhash.xxh3_64()
    for variable in [*model.weights, *model.optimizer.variables]:
        found.update(np.ascontiguousarray(variable).tobytes())
    return {"begun_at": begun[0], "digest": found.hexdigest()}


def start(trainer: str, folder: Path, *options: str) -> dict[str, Any] | None:
    """One process; None if it was killed."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found: dict[str, Any] | None = ask_child(__file__, "--child", trainer, folder, *options, environment=environment)
    return found


def measure(trainer: str) -> Iterator[dict[str, Any]]:
    """Uninterrupted, then killed and started again: by its own checkpoints, and by TranLogs."""
    with tempfile.TemporaryDirectory() as folder:
        whole = start(trainer, Path(folder) / "whole")
        assert whole is not None
        for option, by in (("own", "its own checkpoints"), ("log", "TranLogs")):
            place = Path(folder) / option
            assert start(trainer, place, option, "kill") is None, "it was to die"
            again = start(trainer, place, option)
            assert again is not None
            yield {
                "trainer": trainer,
                "by": by,
                "died_in_step": DEATH + 1,
                "went_on_after_step": again["begun_at"],
                "finished_steps_lost": DEATH - again["begun_at"],
                "exact": again["digest"] == whole["digest"],
            }


def main() -> None:
    parser = command_line(__doc__.partition("\n")[0], "one trainer: checks the script, not the claim", out="trainers")
    parser.add_argument("--only", choices=TRAINERS)
    parser.add_argument("--child", nargs="+")
    given = parser.parse_args()
    if given.child:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        trainer, folder, *options = given.child
        train = {"huggingface": huggingface, "lightning": lightning, "accelerate": accelerate, "keras": keras}[trainer]
        print(json.dumps(train(Path(folder), "own" in options, "log" in options, "kill" in options)))
        return
    begun, rows = Circumstances(), []
    for trainer in [given.only] if given.only else TRAINERS[:1] if given.quick else TRAINERS:
        for row in measure(trainer):
            rows.append(row)
            print(json.dumps(row), flush=True)
    write_results(given.out, {"rows": rows}, begun)


if __name__ == "__main__":
    main()
