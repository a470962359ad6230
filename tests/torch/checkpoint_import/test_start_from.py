"""A run that starts from a checkpoint of another program trains on as that program would have, bit for bit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from tests.cli.conftest import cli
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer, StartFrom
from tranlogs_torch.offline.run import OfflineRun
from tranlogs_torch.tensors.equality import have_same_bits

__all__ = ["cli"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:.*Please use DTensor instead"),
]
BEFORE, AFTER = 5, 9
OPTIONS: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": 3}


class Net(nn.Module):
    """Two groups, BatchNorm, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.middle = nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(self.norm(self.embed(x))) @ self.head.weight


class Script:
    """What an old script builds and does."""

    def __init__(self, seed: int = 0) -> None:
        torch.set_num_threads(1)  # in fixtures of the module, too: sums of several threads round otherwise
        torch.manual_seed(seed)
        self.model = Net()
        rest = [*self.model.norm.parameters(), *self.model.middle.parameters()]
        groups = [{"params": self.model.embed.parameters(), "lr": 0.02}, {"params": rest}]
        self.inner: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.inner, [2, 7, 8], gamma=0.5)

    def step(self, number: int, optimizer: Any = None) -> None:
        optimizer = optimizer or self.inner
        optimizer.zero_grad()
        self.model(torch.full((3, 4), float(number)) + torch.eye(3, 4)).square().mean().backward()
        optimizer.step()
        self.scheduler.step()

    def train(self, first: int, last: int) -> Script:
        for number in range(first, last):
            self.step(number)
        return self

    def everything(self) -> dict[str, Any]:
        states = [self.inner.state.get(p, {}) for group in self.inner.param_groups for p in group["params"]]
        return {
            "model": self.model.state_dict(),
            "state": states,
            "scheduler": self.scheduler.state_dict(),
            "settings": [{k: v for k, v in g.items() if k != "params"} for g in self.inner.param_groups],
        }


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, torch.Tensor):
        return [] if have_same_bits(a, b) else [path]
    if isinstance(a, dict):
        assert a.keys() == b.keys(), (path, a.keys(), b.keys())
        return [one for key in a for one in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, (list, tuple)):
        return [one for i, (x, y) in enumerate(zip(a, b, strict=True)) for one in differences(x, y, f"{path}.{i}")]
    return [] if a == b else [path]


@pytest.fixture(scope="module")
def old() -> Script:
    """The old script where it stands when it moves; to be read only."""
    return Script().train(0, BEFORE)


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    """What comes out if it does not move."""
    return Script().train(0, AFTER).everything()


@pytest.fixture(scope="module")
def sources(old: Script, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Its state in the forms that there are."""
    folder = tmp_path_factory.mktemp("sources")
    weights, state, scheduler = old.model.state_dict(), old.inner.state_dict(), old.scheduler.state_dict()
    torch.save({"model": weights, "optimizer": state, "scheduler": scheduler, "epoch": 3}, folder / "plain.pt")
    wrapped = {f"module._orig_mod.{name}": value for name, value in weights.items()}
    old_names = {"model_state_dict": wrapped, "optimizer_state_dict": state, "scheduler_state_dict": scheduler}
    torch.save(old_names, folder / "wrapped.pt")
    lightning = {
        "state_dict": {f"model.{k}": v for k, v in weights.items()},
        "optimizer_states": [state],
        "scheduler": scheduler,
    }
    torch.save({**lightning, "pytorch-lightning_version": "2.6.6"}, folder / "trainer.pt")
    torch.save(weights, folder / "weights.pt")
    save_file({name: value for name, value in weights.items() if name != "head.weight"}, folder / "weights.safetensors")
    for is_flat in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
        model, optimizer = get_state_dict(old.model, old.inner, options=options)
        whole = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        dcp.save(whole, checkpoint_id=folder / f"dcp-{is_flat}", no_dist=True)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of TranLogs at the same place, as it exports itself."""
    folder = tmp_path_factory.mktemp("exported")
    script = Script()
    go_on(script, folder / "run", 0, BEFORE).close()
    found = {}
    for form in ("dcp", "pt", "safetensors"):
        offline = OfflineRun(folder / "run" / "rank0")
        offline.replay()
        found[form] = folder / f"out.{form}"
        offline.export(found[form], form)
    return found


def go_on(script: Script, run: Path, first: int, last: int, **arguments: Any) -> LoggedOptimizer:
    """Train with a log."""
    optimizer = LoggedOptimizer(script.inner, run, script.model, **OPTIONS)
    optimizer.track(scheduler=script.scheduler)
    optimizer.recover(**arguments)
    for number in optimizer.steps(last - first, stateless=True):
        script.step(first + number, optimizer)
    return optimizer


@pytest.mark.parametrize("name", ["plain.pt", "wrapped.pt", "trainer.pt", "dcp-False", "dcp-True"])
def test_training_goes_on_with_every_bit(sources: dict[str, Path], right: dict[str, Any], tmp_path: Path, name: str) -> None:
    script = Script(seed=1)
    go_on(script, tmp_path / "run", BEFORE, AFTER, start_from=sources[name]).close()
    assert differences(script.everything(), right) == []


@pytest.mark.parametrize("form", ["dcp", "pt"])
def test_a_run_that_was_exported_starts_another(
    exported: dict[str, Path], right: dict[str, Any], tmp_path: Path, form: str
) -> None:
    script = Script(seed=1)
    optimizer = go_on(script, tmp_path / "run", BEFORE, AFTER, start_from=exported[form])
    optimizer.close()
    assert differences(script.everything(), right) == []
    assert not [note for note in optimizer.report.notes if note.startswith("not used")]


def test_safetensors_of_ours_hold_the_optimizers_tensors(exported: dict[str, Path], old: Script, tmp_path: Path) -> None:
    script = Script(seed=1)
    optimizer = LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS)
    report = optimizer.track(scheduler=script.scheduler).recover(start_from=exported["safetensors"])
    assert report.notes[1:] == ("with the weights came: optimizer main", "as built: scheduler")
    assert differences(script.everything()["model"], old.everything()["model"]) == []
    assert differences(script.everything()["state"], old.everything()["state"]) == []
    assert script.inner.param_groups[0]["lr"] == 0.02
    optimizer.close()


def test_a_crash_goes_on_from_the_run_and_does_not_look_at_the_source(
    sources: dict[str, Path], right: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source.pt"
    source.write_bytes(sources["plain.pt"].read_bytes())
    first = Script(seed=1)
    go_on(first, tmp_path / "run", BEFORE, BEFORE + 2, start_from=source).close()
    source.unlink()
    script = Script(seed=2)
    optimizer = LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS)
    report = optimizer.track(scheduler=script.scheduler).recover(start_from=source)
    assert (report.step, report.exact, report.notes) == (2, True, ())
    for number in optimizer.steps(AFTER - BEFORE, stateless=True):
        script.step(BEFORE + number, optimizer)
    optimizer.close()
    assert differences(script.everything(), right) == []
    offline = OfflineRun(tmp_path / "run" / "rank0")
    assert offline.replay().exact is True


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_weights_alone_leave_the_rest_as_built(sources: dict[str, Path], old: Script, tmp_path: Path, name: str) -> None:
    script = Script(seed=1)
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        report = optimizer.track(scheduler=script.scheduler).recover(start_from=sources[name])
    assert differences(script.everything()["model"], old.everything()["model"]) == []
    assert report.notes == (f"started from {sources[name]}", "as built: optimizer main, scheduler")
    first, second = str(report).splitlines()[:2]
    assert first.startswith("fresh run: step 0 (about 2.3 KiB of log a step; next checkpoint after 3 steps")
    assert second == f"  started from {sources[name]}"
    assert not any(script.inner.state.values())


def test_only_weights_when_asked(sources: dict[str, Path], tmp_path: Path) -> None:
    script = Script(seed=1)
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        optimizer.track(scheduler=script.scheduler)
        report = optimizer.recover(start_from=StartFrom(sources["plain.pt"], only_weights=True))
    assert report.notes[1:] == ("as built: optimizer main, scheduler", "not used: scheduler, optimizer, epoch")
    assert not any(script.inner.state.values())
    assert script.scheduler.last_epoch == 0


def changed(tmp_path: Path, old: Script, **changes: Any) -> Path:
    """A source with some of its weights changed (None: gone)."""
    weights = {**old.model.state_dict(), **{name.replace("__", "."): value for name, value in changes.items()}}
    torch.save(
        {"model": {k: v for k, v in weights.items() if v is not None}, "optimizer": old.inner.state_dict()}, tmp_path / "s.pt"
    )
    return tmp_path / "s.pt"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"middle__bias": None}, "missing: middle.bias"),
        ({"extra__weight": torch.ones(2)}, "unexpected: extra.weight"),
        ({"middle__bias": torch.ones(7)}, "middle.bias: [7] in the source, [6] in the model"),
        ({"middle__bias": torch.ones(6, dtype=torch.bfloat16)}, "middle.bias: bfloat16 in the source, float32 in the model"),
        ({"head__weight": torch.ones(6, 4)}, "embed.weight and head.weight are one tensor in the model but differ"),
        ({"middle__bias": None, "middle__biases": torch.ones(6)}, "unexpected: middle.biases"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changed(tmp_path: Path, old: Script, changes: Any, why: str) -> None:
    script = Script(seed=1)
    before = Script(seed=1).everything()
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        with pytest.raises(UsageError, match=re.escape(f"\n  - {why}")) as caught:
            optimizer.recover(start_from=changed(tmp_path, old, **changes))
        assert "nothing was changed" in str(caught.value)
    assert differences(script.everything(), before) == []
    assert not list((tmp_path / "run" / "rank0" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"middle__bias": None}, {"missing": ["middle.*"]}),
        ({"extra__weight": torch.ones(2)}, {"unexpected": ["extra.*"]}),
        ({"middle__bias": torch.ones(6, dtype=torch.bfloat16)}, {"cast": True}),
    ],
)
def test_a_part_is_loaded_when_it_is_asked_for(tmp_path: Path, old: Script, changes: Any, asked: dict[str, Any]) -> None:
    script = Script(seed=1)
    built = script.model.middle.bias.detach().clone()
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        optimizer.recover(start_from=StartFrom(changed(tmp_path, old, **changes), **asked))
    assert torch.equal(script.model.embed.weight, old.model.embed.weight)
    bias = old.model.middle.bias if "unexpected" in asked else torch.ones(6) if "cast" in asked else built
    assert torch.equal(script.model.middle.bias, bias)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda all: torch.optim.SGD(all, lr=0.1),
            "the source has parameter groups of 1, 4 parameters, the script has groups of 5",
        ),
        (
            lambda all: torch.optim.SGD([{"params": all[:1]}, {"params": all[1:]}], lr=0.1),
            "it is not the state of a SGD: it has amsgrad, betas",
        ),
        (
            lambda all: torch.optim.AdamW([{"params": all[4:]}, {"params": all[:4]}]),
            "exp_avg of middle.bias has shape [6, 4], but the parameter has shape [6]",
        ),
    ],
)
def test_another_optimizers_state_is_refused(sources: dict[str, Path], tmp_path: Path, make: Any, why: str) -> None:
    script = Script(seed=1)
    before = script.everything()["model"]
    inner = make(list(script.model.parameters()))
    with LoggedOptimizer(inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        with pytest.raises(UsageError, match=re.escape(why)):
            optimizer.recover(start_from=sources["plain.pt"])
        assert differences(script.model.state_dict(), before) == []
        optimizer.recover(start_from=StartFrom(sources["plain.pt"], only_weights=True))


def test_by_name_the_order_of_groups_does_not_matter(sources: dict[str, Path], old: Script, tmp_path: Path) -> None:
    script = Script(seed=1)
    rest = [script.model.middle.bias, script.model.norm.weight, script.model.norm.bias, script.model.middle.weight]
    inner = torch.optim.AdamW([{"params": rest}, {"params": script.model.embed.parameters()}])
    with LoggedOptimizer(inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        optimizer.recover(start_from=sources["dcp-True"])
    mine, theirs = inner.state, old.inner.state
    for a, b in zip(script.model.parameters(), old.model.parameters(), strict=True):
        assert differences(mine[a], theirs[b]) == []
    assert [group["lr"] for group in inner.param_groups] == [old.inner.param_groups[1]["lr"], old.inner.param_groups[0]["lr"]]


def test_several_sets_of_weights_are_told_apart_by_the_user(old: Script, tmp_path: Path) -> None:
    weights = old.model.state_dict()
    torch.save({"student": weights, "teacher": {k: v + 1 for k, v in weights.items()}}, tmp_path / "two.pt")
    script = Script(seed=1)
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        with pytest.raises(UsageError, match="weights lie under 'student', 'teacher'"):
            optimizer.recover(start_from=tmp_path / "two.pt")
        report = optimizer.recover(start_from=StartFrom(tmp_path / "two.pt", model="student"))
    assert "not used: teacher" in report.notes
    assert torch.equal(script.model.embed.weight, old.model.embed.weight)


def test_several_models_and_optimizers_go_by_their_names(tmp_path: Path) -> None:
    def build(seed: int) -> tuple[dict[str, nn.Module], torch.optim.Optimizer, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        models: dict[str, nn.Module] = {"g": nn.Linear(2, 3), "d": nn.Linear(3, 1)}
        made = [torch.optim.AdamW(models[name].parameters(), lr=0.1) for name in ("g", "d")]
        models["d"](models["g"](torch.ones(4, 2))).sum().backward()
        return models, made[0], made[1]

    models, first, second = build(0)
    first.step(), second.step()
    content = {"g": models["g"].state_dict(), "d_state_dict": models["d"].state_dict()}
    torch.save({**content, "main": first.state_dict(), "second": second.state_dict()}, tmp_path / "gan.pt")
    fresh, main, other = build(1)
    with LoggedOptimizer(main, tmp_path / "run", fresh, **OPTIONS) as optimizer:
        optimizer.add_optimizer(other, "second")
        optimizer.recover(start_from=tmp_path / "gan.pt")
    for name in models:
        assert differences(dict(fresh[name].state_dict()), dict(models[name].state_dict())) == []
    assert differences(main.state_dict()["state"], first.state_dict()["state"]) == []
    assert differences(other.state_dict()["state"], second.state_dict()["state"]) == []


def test_a_model_is_needed(sources: dict[str, Path], tmp_path: Path) -> None:
    script = Script()
    with (
        LoggedOptimizer(script.inner, tmp_path / "run", **OPTIONS) as optimizer,
        pytest.raises(UsageError, match=r"LoggedOptimizer\(\.\.\., model=\.\.\.\)"),
    ):
        optimizer.recover(start_from=sources["plain.pt"])


# The command line.


@pytest.mark.parametrize("name", ["plain.pt", "dcp-False"])
def test_what_was_imported_is_what_a_run_starts_from(
    cli: Any, sources: dict[str, Path], right: dict[str, Any], tmp_path: Path, name: str
) -> None:
    called = cli("import", sources[name], tmp_path / "run", "--json")
    assert called.code == 0, called.err
    assert called.json["weights"]["model"]["tensors"]["middle.weight"] == ["float32", [6, 6]]
    assert called.json["optimizers"] == {"optimizer": 5}
    assert not list((tmp_path / "run").rglob("*.pt"))
    script = Script(seed=1)
    optimizer = go_on(script, tmp_path / "run", BEFORE, AFTER)
    optimizer.close()
    assert differences(script.everything(), right) == []
    again = cli("import", sources[name], tmp_path / "run")
    assert again.code == 2
    assert "the run has already begun" in again.err


def test_options_go_with_what_was_imported(cli: Any, old: Script, tmp_path: Path) -> None:
    source = changed(tmp_path, old, middle__bias=None, extra__weight=torch.ones(2))
    assert (
        cli("import", source, tmp_path / "run", "--missing", "middle.*", "--unexpected", "extra.*", "--only-weights").code == 0
    )
    script = Script(seed=1)
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        optimizer.recover()
    assert torch.equal(script.model.embed.weight, old.model.embed.weight)
    assert not any(script.inner.state.values())


def test_an_import_that_did_not_fit_can_be_made_again(cli: Any, old: Script, tmp_path: Path) -> None:
    source = changed(tmp_path, old, middle__bias=None)
    assert cli("import", source, tmp_path / "run").code == 0
    script = Script(seed=1)
    with (
        LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer,
        pytest.raises(UsageError, match=r"missing: middle\.bias"),
    ):
        optimizer.recover()
    shutil.rmtree(tmp_path / "run" / "start")
    assert cli("import", source, tmp_path / "run", "--missing", "middle.bias").code == 0
    script = Script(seed=1)
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        assert optimizer.recover().step == 0
    assert torch.equal(script.model.embed.weight, old.model.embed.weight)


def test_an_imported_start_is_not_forgotten(cli: Any, sources: dict[str, Path], tmp_path: Path) -> None:
    assert cli("import", sources["plain.pt"], tmp_path / "run").code == 0
    assert "another import has already created this folder" in cli("import", sources["plain.pt"], tmp_path / "run").err
    script = Script(seed=1)
    with (
        LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer,
        pytest.raises(UsageError, match=r"weights were imported for this run\. Call recover\(\), which loads them"),
    ):
        script.step(0, optimizer)


def test_a_damaged_import_is_named(cli: Any, sources: dict[str, Path], tmp_path: Path) -> None:
    assert cli("import", sources["plain.pt"], tmp_path / "run").code == 0
    state = tmp_path / "run" / "start" / "meta.bin"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    script = Script(seed=1)
    with (
        LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer,
        pytest.raises(UsageError, match=r"start/meta\.bin: .*Import it again"),
    ):
        optimizer.recover()


def test_a_run_that_has_begun_does_not_care_for_what_it_started_from(
    cli: Any, sources: dict[str, Path], tmp_path: Path
) -> None:
    assert cli("import", sources["plain.pt"], tmp_path / "run").code == 0
    go_on(Script(seed=1), tmp_path / "run", BEFORE, BEFORE + 2).close()
    (tmp_path / "run" / "start" / "manifest.json").write_text("damaged")
    script = Script(seed=2)
    with LoggedOptimizer(script.inner, tmp_path / "run", script.model, **OPTIONS) as optimizer:
        assert optimizer.track(scheduler=script.scheduler).recover().step == 2


def test_import_without_a_run_says_what_is_there(cli: Any, sources: dict[str, Path], tmp_path: Path) -> None:
    words = " ".join(cli("import", sources["wrapped.pt"]).out.split())
    assert "weights model_state_dict 9 tensors" in words
    assert "optimizer state of 5 parameters" in words
    assert "module._orig_mod.middle.weight float32 6x6" in words
    torch.save({"model": {"w": torch.tensor([1.0, float("nan")])}}, tmp_path / "nan.pt")
    assert "not finite: w" in cli("import", tmp_path / "nan.pt").out
    refused = cli("import", sources["plain.pt"], "--model", "net", "--json")
    assert (refused.code, refused.json["error"]["kind"]) == (2, "UsageError")
    assert "found no weights under 'net'; there are weights under 'model'" in refused.err
