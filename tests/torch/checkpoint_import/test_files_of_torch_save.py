"""Files of `torch.save` that others wrote are read without pickle; those that mean no good, or are damaged, are refused."""

from __future__ import annotations

import argparse
import pickle
import random
import tarfile
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.checkpoint_import.test_foreign_files import _SYSTEM, Evil
from tranlogs.base.errors import UsageError
from tranlogs_torch.checkpoint_import.foreign_source import read_parts
from tranlogs_torch.checkpoint_import.imported import import_source, read


def evil(marker: Path) -> dict[str, Any]:
    return {"model": {"w": torch.ones(2)}, "x": {"deep": [(Evil(marker),)]}}


def in_zip(source: Path, target: Path, edit: Callable[[str, bytes], bytes | None], how: int = zipfile.ZIP_STORED) -> Path:
    """Copy a file of torch.save with other entries (None: without)."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", how) as new:
        for name in old.namelist():
            if (data := edit(name, old.read(name))) is not None:
                new.writestr(name, data)
    return target


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    torch.save({"model": {"w": torch.arange(6.0)}, "epoch": 3}, tmp_path / "plain.pt")
    return tmp_path / "plain.pt"


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pt_file_that_runs_something_is_refused(tmp_path: Path, is_zip: bool) -> None:
    torch.save(evil(tmp_path / "ran"), tmp_path / "evil.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UsageError, match=r"evil\.pt: it refers to posix\.system, which .* save only the state_dicts") as caught:
        read_parts(tmp_path / "evil.pt", is_trusted=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def _in_pickle(data: bytes) -> Callable[[str, bytes], bytes]:
    return lambda name, old: b"\x80\x02" + data if name.endswith("data.pkl") else old


_NAMESPACE = b"cargparse\nNamespace\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_SYSTEM + b"X\x02\x00\x00\x00ls\x85R.", r"refers to posix\.system"),
        (b"\x8c\x05posix\x8c\x06system\x93.", "Unsupported operand"),
        (b"cbuiltins\neval\n.", "refers to eval"),
        (b"cargparse\n_sys.modules\n.", r"refers to argparse\._sys\.modules"),
        (_NAMESPACE + b")\x81}X\x01\x00\x00\x00a" + _SYSTEM + b"sb.", r"refers to posix\.system"),
        (_NAMESPACE + b"N}X\x08\x00\x00\x00__repr__K\x01s\x86b.", "Can only build"),  # sets an attribute of the class
        (_NAMESPACE + b")\x81}X\x01\x00\x00\x00aK\x01sR.", "unrecognized function"),
        (b"(X\x02\x00\x00\x00lsiposix\nsystem\n.", "Unsupported operand"),
        (b"X\x01\x00\x00\x00xQ.", "persistent_load id must be"),
        (b"}", "cannot read it"),
        (b"K\x01.", "expected a dict, found a int"),
    ],
)
def test_pickles_in_a_pt_file_that_mean_no_good_are_refused(plain: Path, tmp_path: Path, data: bytes, why: str) -> None:
    before = dict(vars(argparse.Namespace))
    with pytest.raises(UsageError, match=rf"evil\.pt: .*{why}"):
        read_parts(in_zip(plain, tmp_path / "evil.pt", _in_pickle(data)))
    assert before == dict(vars(argparse.Namespace))


@pytest.mark.parametrize(
    "edit",
    [
        lambda name, data: data[:4] if name.endswith("data/0") else data,
        lambda name, data: data + b"\0" * 8 if name.endswith("data/0") else data,
        lambda name, data: None if name.endswith("data/0") else data,
        lambda name, data: None if name.endswith("data.pkl") else data,
        lambda name, data: b"middle" if name.endswith("byteorder") else data,
    ],
)
def test_a_zip_with_a_wrong_entry_is_named(plain: Path, tmp_path: Path, edit: Any) -> None:
    with pytest.raises(UsageError, match=r"wrong\.pt: torch\.load\(weights_only=True\) cannot read it"):
        read_parts(in_zip(plain, tmp_path / "wrong.pt", edit))


def test_a_zip_that_was_compressed_again_gives_the_same(plain: Path, tmp_path: Path) -> None:
    packed = in_zip(plain, tmp_path / "packed.pt", lambda _, data: data, zipfile.ZIP_DEFLATED)
    assert torch.equal(read_parts(packed).weights["model"]["w"], torch.arange(6.0))


def test_archives_of_older_kinds_are_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "old.pt", "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            (tmp_path / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
            tar.add(tmp_path / name, name)
    with pytest.raises(UsageError, match=r"old\.pt: .*legacy \.tar format"):
        read_parts(tmp_path / "old.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(UsageError, match=r"pickle\.pt: .*cannot read it"):
        read_parts(tmp_path / "pickle.pt")
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as script:
        script.writestr("script/constants.pkl", b"x")
        script.writestr("script/data.pkl", b"x")
    with pytest.raises(UsageError, match=r"script\.pt: "):
        read_parts(tmp_path / "script.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_every_truncation_of_a_pt_file_is_named(tmp_path: Path, is_zip: bool) -> None:
    torch.save({"model": {"w": torch.arange(6.0)}}, tmp_path / "x.pt", _use_new_zipfile_serialization=is_zip)
    whole = (tmp_path / "x.pt").read_bytes()
    for length in range(0, len(whole), 29):
        (tmp_path / "x.pt").write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"x\.pt: "):
            read_parts(tmp_path / "x.pt")


def test_flipped_bytes_of_a_pt_file_give_an_error_or_a_state(plain: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance, whole = random.Random(seed), plain.read_bytes()
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        plain.write_bytes(damaged)
        with suppress(UsageError):
            read_parts(plain)


def test_what_scripts_save_beside_their_weights_is_read(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    arguments = argparse.Namespace(lr=0.1, out=tmp_path, nested=argparse.Namespace(a=[1]))
    common = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    files: dict[str, dict[str, Any]] = {
        "nanogpt.pt": {
            **common,
            "model_args": {"n_layer": 2, "bias": False, "vocab_size": None},
            "iter_num": 5,
            "best_val_loss": torch.tensor(2.5),
            "config": {"out_dir": "out", "learning_rate": 6e-4},
        },
        "torchvision.pth": {
            **common,
            "lr_scheduler": scheduler.state_dict(),
            "epoch": 3,
            "args": arguments,
            "scaler": torch.amp.GradScaler("cpu").state_dict(),
        },
        "lightning.ckpt": {
            "state_dict": model.state_dict(),
            "optimizer_states": [optimizer.state_dict()],
            "epoch": 1,
            "hyper_parameters": {"lr": 0.1, "args": arguments},
            "lr_schedulers": [scheduler.state_dict()],
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(1.0)}},
        },
        "numbers.tar": {**common, "counts": Counter("aab"), "ordered": OrderedDict(a=1), "names": {"a", "b"}, "z": 1j},
    }
    for name, content in files.items():
        for is_zip in (True, False):
            torch.save(content, tmp_path / name, _use_new_zipfile_serialization=is_zip)
            parts = read_parts(tmp_path / name)
            assert [torch.equal(value, model.state_dict()[key]) for key, value in next(iter(parts.weights.values())).items()]
            assert parts.optimizers[""]["param_groups"] == optimizer.state_dict()["param_groups"]
    found = import_source(tmp_path / "lightning.ckpt", tmp_path / "run", {})
    assert (found["others"], "hyper_parameters" in found["not_used"]) == (["callbacks"], True)
    assert list(read(tmp_path / "run")[1].others) == ["callbacks"]
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(OrderedDict(model.state_dict()), tmp_path / "pytorch_model.bin")
    assert read_parts(tmp_path / "optimizer.pt").weights == {}
    assert list(read_parts(tmp_path / "pytorch_model.bin").weights) == [""]


def test_what_is_allowed_is_allowed_while_reading_and_the_scripts_own_stays(plain: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    with torch.serialization.safe_globals([argparse.Namespace, Fraction]):
        read_parts(plain)
        assert set(torch.serialization.get_safe_globals()) == before | {argparse.Namespace, Fraction}


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors", "x.bin"])
@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"PK\x03\x04" + b"x" * 50, b"\xff" * 8 + b"{}"])
def test_files_that_are_nothing_are_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=name):
        read_parts(tmp_path / name)


@pytest.mark.parametrize("name", ["no.pt", "no.safetensors", "no"])
def test_files_that_are_not_there_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: the file cannot be read"):
        read_parts(tmp_path / name)


def test_other_folders_and_files_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.metadata is missing"):
        read_parts(tmp_path)
    with pytest.raises(UsageError, match="this is a file of Keras"):
        read_parts(tmp_path / "model.weights.h5")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UsageError, match="expected a dict, found a list"):
        read_parts(tmp_path / "list.pt")
