"""Folders of `torch.distributed.checkpoint` that others wrote: nothing in them runs, and damage of any byte is named."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
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
        (_grow, "more bytes than the file contains"),
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


@pytest.mark.sampled(0)
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
