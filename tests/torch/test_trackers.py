"""Experiment trackers: after three kills, each has one run in which each step is there once, by the lines of the documentation.

The trackers lie in folders of their own (`make test` fetches them). A child puts such a folder at the end of its path, so that
nothing in it comes before what is installed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Cli, cli
from tests.kills.launchers import run_script
from tests.support.examples import shortened
from tranlogs_torch import LoggedOptimizer

__all__ = ["cli"]

pytestmark = pytest.mark.crash

DEATHS = (3, 4, 9)  # steps that are sent and not yet safe
LAST = 12
HEAD = """
import json, os, signal, sys
sys.path.append(sys.argv[1])
sys.modules["tensorflow"] = None  # TensorBoard does without it, and it cannot be in one process with torch's compiler
import torch
import torch._dynamo  # the first step imports it
from tranlogs_torch import LoggedOptimizer

folder, last = sys.argv[2], int(sys.argv[3])
DEATHS = [int(word) for word in sys.argv[4:]]


def live(life, deaths=DEATHS):
    for die_at in [*deaths, 0]:
        child = os.fork()
        if child == 0:
            life(die_at)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == (signal.SIGKILL if die_at else 0)


def train(die_at, start):
    parameter = torch.nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([parameter], lr=0.1)
    optimizer = LoggedOptimizer(inner, f"{folder}/run", torch.nn.ParameterList([parameter]), durability="process")
    report = optimizer.recover()
    logged, send, end = start(optimizer, report)
    for step, loss in zip(*optimizer.scalars.get("loss", ([], []))):
        if step > logged:
            send(step, loss)
    logged = max(logged, report.step)
    for number in optimizer.steps(last, stateless=True):
        loss = parameter.square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.log_scalars(loss=loss.item())
        if number + 1 > logged:
            send(number + 1, loss.item())
        if number + 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    optimizer.close()
    end()
    return optimizer
"""
TENSORBOARD = """
from torch.utils.tensorboard import SummaryWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def start(optimizer, report):
    writer = SummaryWriter(f"{folder}/board", purge_step=report.step + 1)

    def send(step, loss):
        writer.add_scalar("loss", loss, step)
        writer.flush()

    return report.step, send, writer.close


live(lambda die_at: train(die_at, start))
board = EventAccumulator(f"{folder}/board", size_guidance={"scalars": 0})
board.Reload()
print(json.dumps({"steps": [event.step for event in board.Scalars("loss")], "files": len(os.listdir(f"{folder}/board"))}))
"""
WANDB = """
import wandb
from wandb.proto.wandb_internal_pb2 import Record


def start(optimizer, report):
    wandb.init(project="gpt", id=optimizer.run_id, resume="allow", dir=folder)
    return 0, lambda step, loss: wandb.log({"loss": loss}, step=step), wandb.finish


def scan(path):
    # Yield the records of a file: 7 bytes, then blocks of 32 KiB with chunks (checksum, length, kind, bytes).
    data, place, parts = open(path, "rb").read(), 7, b""
    while place + 7 <= len(data):
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if kind == 0:  # the rest of a block
            place += 32768 - place % 32768
            continue
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield Record.FromString(parts)
            parts = b""


def points(path):
    for record in scan(path):
        if record.WhichOneof("record_type") == "history":
            yield {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}


def life(die_at):
    optimizer = train(die_at, start)
    with open(f"{folder}/result", "w") as file:
        steps, losses = optimizer.scalars["loss"]
        json.dump({"id": optimizer.run_id, "curve": [[int(step), float(loss)] for step, loss in zip(steps, losses)]}, file)


live(life)
names = sorted(name for name in os.listdir(f"{folder}/wandb") if name.startswith("offline-run-"))
# offline-run-DATE_TIME-ID, and a number if two started within a second.
ids = [name.split("-")[3] for name in names]
newest = f"{folder}/wandb/{names[-1]}/run-{ids[-1]}.wandb"
found = [[point["_step"], point["loss"]] for point in points(newest)]
print(json.dumps({**json.load(open(f"{folder}/result")), "ids": ids, "points": found}))
"""
MLFLOW = """
import runpy
import keras
import mlflow
import mlflow.store.model_registry.sqlalchemy_store, mlflow.store.tracking.sqlalchemy_store  # each life would import them
import numpy
import sklearn.datasets
from tranlogs_keras import TranLogsCallback


def run_example(die_at):
    step = LoggedOptimizer.step

    def dying(optimizer, *arguments):
        step(optimizer, *arguments)
        dying.steps += 1
        if dying.steps == die_at:
            sys.setprofile(die_when_sent)

    def die_when_sent(frame, event, argument):
        if event == "return" and frame.f_code is mlflow.log_metric.__code__:
            os.kill(os.getpid(), signal.SIGKILL)

    dying.steps, LoggedOptimizer.step = 0, dying
    runpy.run_path(f"{folder}/mlflow_tracker.py", run_name="__main__")


def fit(die_at):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    callback = TranLogsCallback(f"{folder}/fit", durability="process")
    client, experiment = mlflow.MlflowClient(), mlflow.set_experiment("fit").experiment_id
    found = client.search_runs([experiment], f"tags.tranlogs = '{callback.run_id}'")
    run = found[0] if found else client.create_run(experiment, tags={"tranlogs": callback.run_id})
    mlflow.start_run(run_id=run.info.run_id)
    logged = max((metric.step for metric in client.get_metric_history(run.info.run_id, "loss")), default=-1)

    def send(epoch, logs):
        if epoch > logged:
            mlflow.log_metric("loss", logs["loss"], step=epoch)
        if epoch == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    each_epoch = keras.callbacks.LambdaCallback(on_epoch_end=send)
    x = numpy.ones((8, 3), "float32")
    history = model.fit(x, x[:, :1], batch_size=2, epochs=8, verbose=0, callbacks=[each_epoch, callback])
    mlflow.log_param("losses", json.dumps(history.history["loss"]))
    mlflow.end_run()


os.chdir(folder)
live(run_example)
mlflow.set_tracking_uri("sqlite:///mlflow.db")
live(fit, [1, 2, 5])
client = mlflow.MlflowClient()
answer = {}
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "loss")
        points = [[metric.step, metric.value] for metric in history]
        one = {"id": run.data.tags["tranlogs"], "points": points, "status": run.info.status, **run.data.params}
        answer.setdefault(experiment.name, []).append(one)
print(json.dumps(answer))
"""


def run_child(script: str, packages: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a script whose lives die, in one process with the packages; return what it found in the end."""
    place = Path(sys.prefix) / packages
    if not place.is_dir():
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {place} is not there: make test fetches it")
        pytest.skip(f"{place} is not there: make test fetches it")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "KERAS_BACKEND": "torch"}.items():
        monkeypatch.setenv(name, value)
    done = run_script(HEAD + script, folder, place, folder, LAST, *DEATHS)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tensorboard_shows_one_curve_after_three_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_child(TENSORBOARD, "tensorboard", tmp_path, monkeypatch)
    assert found == {"steps": list(range(1, LAST + 1)), "files": 4}, "each step once, from the files of four processes"


@pytest.mark.sampled(0)
def test_the_newest_folder_of_wandb_has_each_step_once_after_three_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_child(WANDB, "trackers", tmp_path, monkeypatch)
    assert found["ids"] == [found["id"]] * 4
    assert [step for step, _ in found["points"]] == list(range(1, LAST + 1))
    assert found["points"] == found["curve"]


@pytest.mark.sampled(0)
def test_mlflow_has_one_run_with_each_step_once_after_three_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shortened("mlflow_tracker", tmp_path, BATCHES=18)
    found = run_child(MLFLOW, "trackers", tmp_path, monkeypatch)
    (script,), (fit,) = found["digits"], found["fit"]
    assert script["id"] != fit["id"]
    assert (script["status"], fit["status"]) == ("FINISHED", "FINISHED")
    assert [step for step, _ in script["points"]] == list(range(1, 19))
    assert [step for step, _ in fit["points"]] == list(range(8))
    assert [value for _, value in fit["points"]] == json.loads(fit["losses"])


def test_the_id_is_known_at_once_and_stays_on_another_timeline(tmp_path: Path, cli: Cli) -> None:
    seen = []
    for step in (None, None, 2):
        parameter = torch.nn.Parameter(torch.ones(2))
        with LoggedOptimizer(torch.optim.SGD([parameter], lr=0.1), tmp_path / "run", segment_bytes=1 << 20) as optimizer:
            before = optimizer.run_id
            report = optimizer.recover(step)
            for _ in optimizer.steps(4):
                parameter.grad = torch.ones(2)
                optimizer.step()
            seen.append((before, optimizer.run_id, report.timeline))
        assert optimizer.run_id == before, "after close(), too"
    assert {one for before, after, _ in seen for one in (before, after)} == {seen[0][0]}
    assert [timeline for *_, timeline in seen] == [1, 1, 2]
    assert cli("status", tmp_path / "run", "--json").json["ranks"][0]["run_id"] == seen[0][0]
