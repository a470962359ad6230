"""Files that somebody else wrote: nothing in them runs, and damage is named, whatever the bytes are."""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import subprocess
import sys
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
import torch.distributed.checkpoint as dcp

from tranlogs.base.errors import UsageError
from tranlogs_torch.checkpoint_import.dcp import read_folder
from tranlogs_torch.checkpoint_import.dcp_metadata import METADATA, read_metadata
from tranlogs_torch.checkpoint_import.foreign_source import read_parts
from tranlogs_torch.checkpoint_import.imported import import_source, read

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = {
    "model": {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "n": torch.tensor(7)},
    "optimizer": {
        "state": {"w": {"step": torch.tensor(3.0)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["w"]}],
    },
    "scheduler": {"last_epoch": 4, "base_lrs": [0.1], "name": None},
    "empty": torch.empty(0, 2),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dcp") / "folder"
    dcp.save(STATE, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "folder"))


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_a_folder_is_read_as_it_was_saved(folder: Path) -> None:
    found = read_folder(folder)
    assert found["optimizer"]["param_groups"] == STATE["optimizer"]["param_groups"]  # type: ignore[index]
    assert found["scheduler"] == STATE["scheduler"]
    for name, value in STATE["model"].items():  # type: ignore[union-attr]
        assert found["model"][name].dtype == value.dtype
        assert torch.equal(found["model"][name], value)
    assert found["empty"].shape == (0, 2)


def test_what_is_read_is_what_torch_reads(folder: Path) -> None:
    theirs, mine = dcp.FileSystemReader(folder).read_metadata(), read_metadata(folder)
    assert mine == read_metadata(folder, is_trusted=True)
    assert mine.storage_data == theirs.storage_data
    assert mine.planner_data == theirs.planner_data
    for name, entry in theirs.state_dict_metadata.items():
        found: Any = mine.state_dict_metadata[name]
        assert type(found) is type(entry)
        if hasattr(entry, "chunks"):
            assert (found.properties.dtype, found.size, found.chunks) == (entry.properties.dtype, entry.size, entry.chunks)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_pickle_that_runs_something_runs_nothing_without_trust(folder: Path, tmp_path: Path, is_trusted: bool) -> None:
    marker = tmp_path / "ran"
    (folder / METADATA).write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(UsageError, match=r"refers to posix\.system" if not is_trusted else "not valid metadata"):
        read_folder(folder, is_trusted=is_trusted)
    assert marker.exists() is is_trusted


@pytest.mark.parametrize("place", ["planner_data", "storage_data", "state_dict_metadata", "version"])
def test_no_place_in_the_metadata_runs_anything(folder: Path, tmp_path: Path, place: str) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    setattr(metadata, place, {"x": Evil(tmp_path / "ran")})
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match=r"refers to posix\.system"):
        read_folder(folder)
    assert not (tmp_path / "ran").exists()


def test_lists_that_share_what_they_nest_fill_no_memory(folder: Path) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested] * 10
    name = next(name for name, about in metadata.state_dict_metadata.items() if hasattr(about, "size"))
    object.__setattr__(metadata.state_dict_metadata[name], "size", nested)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match="are not sizes"):
        read_folder(folder)


_SYSTEM = b"cposix\nsystem\n"
_METADATA = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
_INDEX = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_SYSTEM + b"(X\x02\x00\x00\x00lstR.", "refers to posix.system"),
        (b"(X\x02\x00\x00\x00lsiposix\nsystem\n.", "uses an opcode"),  # INST
        (b"(" + _SYSTEM + b"X\x02\x00\x00\x00lso.", "refers to posix.system"),
        (b"\x8c\x05posix\x8c\x06system\x93.", "refers to posix.system"),
        (b"cbuiltins\ngetattr\n.", "refers to builtins.getattr"),
        (b"ctorch\nload\n.", "refers to torch.load"),
        (b"ctorch.distributed.checkpoint.metadata\nMetadata.__init__\n.", "refers to .*__init__"),
        (b"ctorch.distributed.checkpoint.filesystem\nos.system\n.", "refers to .*os.system"),
        (b"\x82\x01.", "uses an opcode"),  # EXT1
        (b"X\x01\x00\x00\x00xQ.", "uses an opcode"),  # BINPERSID
        (b"]]\x92.", "uses an opcode"),  # NEWOBJ_EX
        (b"\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "uses an opcode"),  # BYTEARRAY8
        (_METADATA + b")\x81}X\x09\x00\x00\x00__class__" + _SYSTEM + b"sb.", "refers to posix.system"),
        (_METADATA + b"}b.", "not valid metadata"),
        (_METADATA + b"N}X\x03\x00\x00\x00newK\x01s\x86b.", "not valid metadata"),  # sets an attribute of the class
        (_METADATA + _METADATA + b"\x85R.", "not valid metadata"),
        (b"})Ns.", "has a key that is neither"),
        (b"}()N0.", "uses an opcode"),  # POP
        (b"}()Nu.", "has a key that is neither"),
        (b"}N" + b"\x85" * 200_000 + b"Ns.", "has a key that is neither"),  # hashing it would end the process
        (b"}" + _INDEX + b")\x81}X\x03\x00\x00\x00fqnN" + b"\x85" * 200_000 + b"sbNs.", "not valid metadata"),
        (b"}(N.", "not valid metadata"),
        (b"\x85" * 9 + b".", "not valid metadata"),
        (b"N" + b"\x85" * 50_000 + b"}q\x00h\x00.", "not valid metadata"),
        (b"j\xff\xff\xff\xff.", "not valid metadata"),
        (b"Nr\xff\xff\xff\x7f.", "not valid metadata"),  # an index of the memo: no memory is allocated for it
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.", "not valid metadata"),
        (b"\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", "not valid metadata"),
        (b"N", "not valid metadata"),
    ],
)
def test_pickles_that_mean_no_good_are_refused(folder: Path, data: bytes, why: str) -> None:
    classes = {name: dict(vars(getattr(dcp.metadata, name))) for name in ("Metadata", "MetadataIndex")}
    (folder / METADATA).write_bytes(b"\x80\x04" + data)
    with pytest.raises(UsageError, match=why):
        read_folder(folder)
    assert classes == {name: dict(vars(getattr(dcp.metadata, name))) for name in classes}


@pytest.mark.parametrize("place", [b"X\x07\x00\x00\x00model.w", b"ctorch\nfloat32\n", b"K\x02"])
def test_a_deep_nest_in_place_of_a_name_a_dtype_or_a_size_ends_no_process(folder: Path, place: bytes) -> None:
    data = pickle.dumps(dcp.FileSystemReader(folder).read_metadata(), protocol=2)
    assert place in data
    (folder / METADATA).write_bytes(data.replace(place, b"N" + b"\x85" * 200_000, 1))
    with pytest.raises(UsageError, match=r"\.metadata: "):
        read_folder(folder)


def test_a_nest_too_deep_for_the_interpreter_ends_no_process(folder: Path) -> None:
    (folder / METADATA).write_bytes(b"\x80\x04" + _METADATA + b")\x81" + b"N" + b"\x85" * 60_000 + b"b.")
    with pytest.raises(UsageError, match="not valid metadata"):
        read_folder(folder)


def test_every_truncation_is_named(folder: Path) -> None:
    whole = (folder / METADATA).read_bytes()
    for length in range(0, len(whole), 37):
        (folder / METADATA).write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"\.metadata: "):
            read_folder(folder)
    (folder / METADATA).write_bytes(whole)
    (data,) = folder.glob("*.distcp")
    size = data.stat().st_size
    for length in (size - 1, size // 2, 0):
        os.truncate(data, length)
        with pytest.raises(UsageError, match="the file is too short"):
            read_folder(folder)
    data.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        read_folder(folder)


def test_flipped_bytes_give_an_error_or_a_state_and_nothing_else(folder: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    (data,) = folder.glob("*.distcp")
    for file in [folder / METADATA] * 150 + [data] * 50:
        whole = file.read_bytes()
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged)
        with suppress(UsageError):  # anything else, or the end of the process, is a failure
            read_folder(folder)
        file.write_bytes(whole)


@pytest.mark.parametrize("where", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_path_out_of_the_folder_is_refused(folder: Path, where: str) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = where
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match="which is not in the folder"):
        read_folder(folder)


def _grow(metadata: Any) -> None:
    about = metadata.state_dict_metadata["model.w"]
    about.size = about.chunks[0].sizes = torch.Size([1 << 40, 1 << 20])


def _overlap(metadata: Any) -> None:
    about = metadata.state_dict_metadata["model.w"]
    about.size = torch.Size([4, 3])
    about.chunks.append(about.chunks[0])


def _outside(metadata: Any) -> None:
    metadata.state_dict_metadata["model.w"].chunks[0].offsets = torch.Size([1, 0])


def _lose(metadata: Any) -> None:
    metadata.state_dict_metadata["model.w"].chunks.clear()


def _compress(metadata: Any) -> None:
    next(iter(metadata.storage_data.values())).transform_descriptors = ["zstd"]


def _swap(metadata: Any) -> None:
    infos = {index.fqn: info for index, info in metadata.storage_data.items()}
    infos["model.w"].offset, infos["model.w"].length = infos["model.n"].offset, infos["model.n"].length


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_grow, "larger than what the file contains"),
        (_overlap, "do not add up to the tensor"),
        (_outside, "no file contains"),
        (_lose, "do not add up to the tensor"),
        (_compress, r"was saved with \['zstd'\]"),
        (_swap, "model.w: torch.load"),
    ],
)
def test_sizes_and_places_are_not_believed(folder: Path, damage: Any, why: str) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    damage(metadata)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match=why):
        read_folder(folder)


def test_an_object_that_is_no_plain_value_needs_trust(tmp_path: Path) -> None:
    dcp.save({"model": {"w": torch.ones(2)}, "where": Fraction(1, 2)}, checkpoint_id=tmp_path / "f", no_dist=True)
    with pytest.raises(UsageError, match=r"where: it refers to fractions\.Fraction, which"):
        read_folder(tmp_path / "f")
    assert read_folder(tmp_path / "f", is_trusted=True)["where"] == Fraction(1, 2)


def test_pieces_of_several_processes_are_put_together(tmp_path: Path) -> None:
    whole = torch.arange(20.0).view(5, 4)
    dcp.save({"w": whole}, checkpoint_id=tmp_path / "f", no_dist=True)
    metadata: Any = dcp.FileSystemReader(tmp_path / "f").read_metadata()
    about, (index, info) = metadata.state_dict_metadata["w"], next(iter(metadata.storage_data.items()))
    about.chunks, metadata.storage_data = [], {}
    for start, rows in ((3, 2), (0, 3)):
        torch.save(whole[start : start + rows].clone(), tmp_path / "f" / f"part{start}")
        offset, sizes = torch.Size([start, 0]), torch.Size([rows, 4])
        about.chunks.append(type(metadata.state_dict_metadata["w"]).__dataclass_fields__ and _chunk(offset, sizes))
        metadata.storage_data[type(index)("w", offset)] = type(info)(
            f"part{start}", 0, (tmp_path / "f" / f"part{start}").stat().st_size
        )
    (tmp_path / "f" / METADATA).write_bytes(pickle.dumps(metadata))
    assert torch.equal(read_folder(tmp_path / "f")["w"], whole)


def _chunk(offsets: torch.Size, sizes: torch.Size) -> Any:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return ChunkStorageMetadata(offsets, sizes)


@pytest.mark.parametrize("name", ["model.w", "scheduler.last_epoch"])
def test_a_piece_that_runs_something_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    torch.save(Evil(tmp_path / "ran"), folder / "evil")
    metadata: Any = dcp.FileSystemReader(folder).read_metadata()
    info = {index.fqn: info for index, info in metadata.storage_data.items()}[name]
    info.relative_path, info.offset, info.length = "evil", 0, (folder / "evil").stat().st_size
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match=rf"evil: {name}: it refers to posix\.system, which"):
        read_folder(folder)
    assert not (tmp_path / "ran").exists()


def test_pieces_of_fsdp2_are_put_together(tmp_path: Path) -> None:
    code = """if True:
        import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict
        from torch.distributed.fsdp import fully_shard
        rank, folder = int(sys.argv[1]), sys.argv[2]
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
        whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/f")
        if rank == 0:
            torch.save(whole, f"{folder}/whole.pt")
        dist.destroy_process_group()
    """
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [one.wait(120) for one in ranks] == [0, 0]
    assert len(list((tmp_path / "f").glob("*.distcp"))) == 2
    found, whole = read_parts(tmp_path / "f"), torch.load(tmp_path / "whole.pt")
    assert found.weights["model"].keys() == whole.keys()
    assert all(torch.equal(value, whole[name]) for name, value in found.weights["model"].items())
    assert found.optimizers[""]["state"]["0.weight"]["exp_avg"].shape == (3, 5)


# Files of torch.save.


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
