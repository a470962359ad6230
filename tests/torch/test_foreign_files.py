"""Files that somebody else wrote: nothing in them runs, and damage is named, whatever the bytes are."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tranlogs.errors import UsageError
from tranlogs_torch.starting.dcp import read_folder
from tranlogs_torch.starting.metadata import METADATA, read_metadata
from tranlogs_torch.starting.plain_pickle import Refused, read_pickle
from tranlogs_torch.starting.source import read_parts

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STATE = {
    "model": {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "n": torch.tensor(7)},
    "optimizer": {"state": {"w": {"step": torch.tensor(3.0)}},
                  "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["w"]}]},
    "scheduler": {"last_epoch": 4, "base_lrs": [0.1], "name": None}, "empty": torch.empty(0, 2),
}  # fmt: skip


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
    theirs = dcp.FileSystemReader(folder).read_metadata()
    assert read_metadata(folder) == read_metadata(folder, is_trusted=True)
    assert read_metadata(folder).keys() == theirs.state_dict_metadata.keys()


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_pickle_that_runs_something_runs_nothing_without_trust(folder: Path, tmp_path: Path, is_trusted: bool) -> None:
    marker = tmp_path / "ran"
    (folder / METADATA).write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(UsageError, match=r"names posix\.system" if not is_trusted else "it cannot be read"):
        read_folder(folder, is_trusted=is_trusted)
    assert marker.exists() is is_trusted


@pytest.mark.parametrize("place", ["planner_data", "storage_data", "state_dict_metadata", "version"])
def test_no_place_in_the_metadata_runs_anything(folder: Path, tmp_path: Path, place: str) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    setattr(metadata, place, {"x": Evil(tmp_path / "ran")})
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match=r"names posix\.system"):
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
    with pytest.raises(UsageError, match="are no sizes"):
        read_folder(folder)


_SYSTEM = b"cposix\nsystem\n"
_METADATA = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80\x04" + _SYSTEM + b"(X\x02\x00\x00\x00lstR.", "names posix.system"),
        (b"\x80\x04(X\x02\x00\x00\x00lsiposix\nsystem\n.", "uses INST"),
        (b"\x80\x04(" + _SYSTEM + b"X\x02\x00\x00\x00lso.", "names posix.system"),
        (b"\x80\x04cbuiltins\ngetattr\n.", "names builtins.getattr"),
        (b"\x80\x04ctorch\nload\n.", "names torch.load"),
        (b"\x80\x04\x82\x01.", "uses EXT1"),
        (b"\x80\x04X\x01\x00\x00\x00xQ.", "uses BINPERSID"),
        (b"\x80\x04" + _METADATA + b")\x81}X\x09\x00\x00\x00__class__" + _SYSTEM + b"sb.", "names posix.system"),
        (b"\x80\x04" + _METADATA + b"}b.", "sets the state of something that is no record"),
        (b"\x80\x04" + _METADATA + _METADATA + b"\x85R.", "makes a .*Metadata of something that is no plain value"),
        (b"\x80\x04})Ns.", "a key is a tuple"),
        (b"\x80\x04}(N.", "more than one value"),
        (b"\x80\x04" + b"\x85" * 9 + b".", "damaged"),
        (b"\x80\x04N" + b"\x85" * 50_000 + b"}q\x00h\x00.", "more than one value"),
        (b"\x80\x04j\xff\xff\xff\xff.", "damaged"),
        (b"\x80\x04Nr\xff\xff\xff\x7f.", None),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.", "damaged"),
        (b"", "damaged"),
    ],
)
def test_pickles_that_mean_no_good_are_refused(data: bytes, why: str | None) -> None:
    records = frozenset(["torch.distributed.checkpoint.metadata.Metadata"])
    if why is None:
        assert read_pickle(data, records, {}, {}) is None
        return
    with pytest.raises(Refused, match=why):
        read_pickle(data, records, {}, {})


def test_a_nest_too_deep_for_the_interpreter_ends_no_process(folder: Path) -> None:
    (folder / METADATA).write_bytes(b"\x80\x04" + _METADATA + b")\x81" + b"N" + b"\x85" * 60_000 + b"b.")
    with pytest.raises(UsageError, match="no sound metadata"):
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
    with pytest.raises(UsageError, match="it cannot be read"):
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
        (_grow, "its size is more than there is of it"), (_overlap, "not the whole of it"), (_outside, "lies outside of it"),
        (_lose, "not the whole of it"), (_compress, "went through zstd"), (_swap, "not the tensor that the metadata name"),
    ],
)  # fmt: skip
def test_sizes_and_places_are_not_believed(folder: Path, damage: Any, why: str) -> None:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    damage(metadata)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(UsageError, match=why):
        read_folder(folder)


def test_an_object_that_is_no_plain_value_needs_trust(tmp_path: Path) -> None:
    dcp.save(
        {"model": {"w": torch.ones(2)}, "where": subprocess.CompletedProcess((), 0)}, checkpoint_id=tmp_path / "f", no_dist=True
    )
    with pytest.raises(UsageError, match="where: it cannot be read with weights_only=True"):
        read_folder(tmp_path / "f")
    assert read_folder(tmp_path / "f", is_trusted=True)["where"].returncode == 0


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


def test_a_pt_file_that_runs_something_is_refused(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "x": Evil(tmp_path / "ran")}, tmp_path / "evil.pt")
    with pytest.raises(UsageError, match="save the state_dicts alone"):
        read_parts(tmp_path / "evil.pt", is_trusted=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors", "x.bin"])
@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"PK\x03\x04" + b"x" * 50, b"\xff" * 8 + b"{}"])
def test_files_that_are_nothing_are_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=name):
        read_parts(tmp_path / name)


@pytest.mark.parametrize("name", ["no.pt", "no.safetensors", "no"])
def test_files_that_are_not_there_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: it cannot be read"):
        read_parts(tmp_path / name)


def test_other_folders_and_files_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no \.metadata"):
        read_parts(tmp_path)
    with pytest.raises(UsageError, match="such files are Keras's"):
        read_parts(tmp_path / "model.weights.h5")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UsageError, match="it holds a list, not a dict"):
        read_parts(tmp_path / "list.pt")
