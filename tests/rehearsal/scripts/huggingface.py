"""Hugging Face Trainer, with an evaluation after each epoch."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback


class Windows(Dataset):
    def __init__(self, count):
        self.windows = torch.randint(0, 32, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        return {"input_ids": self.windows[i], "labels": self.windows[i]}


set_seed(0)
arguments = TrainingArguments(
    "output",
    num_train_epochs=5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    logging_steps=2,
    eval_strategy="epoch",
    save_strategy="steps",
    save_steps=5,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
config = GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=16, vocab_size=32, bos_token_id=0, eos_token_id=0)
callback = TranLogsTrainerCallback("runs/huggingface")
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Windows(64), eval_dataset=Windows(8), callbacks=[callback])
trainer.train()
