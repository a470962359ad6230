"""A training that MLflow tracks. Run it, kill it (Ctrl-C, kill -9), run it again: MLflow has one run, and each step once.

    pip install mlflow
    python examples/mlflow_tracker.py
    mlflow ui --backend-store-uri sqlite:///mlflow.db

A tracker starts a new run in every process. `optimizer.run_id` is the same in all of them, so the run is found again by a tag.
A process may die after it has sent a step that is then trained again, or before it has sent a step that is safe:
`optimizer.scalars` has the numbers of all steps that are safe, and only those that MLflow lacks are sent.
"""

import mlflow
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

BATCHES = 400

torch.manual_seed(6)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))

optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), run="runs/mlflow", model=model)
report = optimizer.track(loader=loader).recover()
print(report, flush=True)

mlflow.set_tracking_uri("sqlite:///mlflow.db")
client = mlflow.MlflowClient()
experiment = mlflow.set_experiment("digits").experiment_id
found = client.search_runs([experiment], f"tags.tranlogs = '{optimizer.run_id}'")
run = found[0] if found else client.create_run(experiment, tags={"tranlogs": optimizer.run_id})
mlflow.start_run(run_id=run.info.run_id)
logged = max((metric.step for metric in client.get_metric_history(run.info.run_id, "loss")), default=0)
for step, value in zip(*optimizer.scalars.get("loss", ([], [])), strict=True):
    if step > logged:  # safe here, and not in MLflow
        mlflow.log_metric("loss", value, step=step)
logged = max(logged, report.step)

for i, (x, y) in optimizer.batches(loader, until=BATCHES, enumerate=True):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.log_scalars(loss=loss.item())
    if i + 1 > logged:
        mlflow.log_metric("loss", loss.item(), step=i + 1)
    if i % 100 == 0:
        print(f"batch {i}: loss {loss.item():.4f}", flush=True)
optimizer.close()
mlflow.end_run()
print(f"done: loss {loss.item():.4f}, in one MLflow run of {BATCHES} steps, however often it was killed")
