"""Checkpoints: every layout comes back, other programs can read them, no byte can change unnoticed, and they appear whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import campaign
from tests.support.faults import failing
from tranlogs.base.errors import CorruptCheckpoint, UnknownFormat
from tranlogs.base.types import ITEMSIZE, AnyArray, Array, SparseArray, dense
from tranlogs.checkpoints import Checkpoint, Snapshot, SnapshotPool, checkpoint_name, write_checkpoint
from tranlogs.checkpoints.folder import MANIFEST, META, STATE

ABOUT = {"step": 7, "sequence": 15, "chain": f"{0xFEED:016x}", "timeline": 2, "run_id": "r", "created_at": 1.0}


NAME = checkpoint_name(7, 2, 15)


NOT_NUMPY = [dtype for dtype in ITEMSIZE if dtype.startswith(("bfloat", "float8"))]


def write(
    folder: Path, tensors: dict[str, AnyArray], meta: dict[str, Any] | None = None, pool: SnapshotPool | None = None
) -> Path:
    snapshot = Snapshot(tensors, meta or {})
    snapshot.encode(None)
    (pool or SnapshotPool()).hold(snapshot)
    write_checkpoint(folder, NAME, snapshot, dict(ABOUT))
    return folder / NAME


def permuted(values: np.ndarray[Any, Any], order: tuple[int, ...]) -> Array:
    """The values with their dimensions in another order of memory."""
    inner = np.ascontiguousarray(values.transpose(order))
    strides = [0] * values.ndim
    for position, dim in enumerate(order):
        strides[dim] = inner.strides[position] // inner.itemsize
    return Array(values.dtype.name, values.shape, dense(inner).data, tuple(strides))


def same(found: AnyArray, made: AnyArray) -> bool:
    if isinstance(made, SparseArray):
        assert isinstance(found, SparseArray)
        same_parts = same(found.indices, made.indices) and same(found.values, made.values)
        return same_parts and (found.shape, found.is_coalesced) == (made.shape, made.is_coalesced)
    assert isinstance(found, Array)
    return (found.dtype, found.shape, found.strides, found.data.tobytes(), found.is_tensor) == (
        made.dtype,
        made.shape,
        made.strides,
        made.data.tobytes(),
        made.is_tensor,
    )


def everything() -> dict[str, AnyArray]:
    """A tensor of every dtype, and every layout."""
    rng = np.random.default_rng(0)
    made: dict[str, AnyArray] = {}
    for dtype, itemsize in ITEMSIZE.items():
        for shape in ((), (0,), (3, 0, 2), (5,), (2, 3)):
            data = rng.integers(0, 2 if dtype == "bool" else 256, math.prod(shape) * itemsize, np.uint8)
            made[f"{dtype}/{shape}"] = Array(dtype, shape, data)
    cube = rng.standard_normal((4, 3, 2)).astype(np.float32)
    for order in ((0, 2, 1), (2, 1, 0), (1, 0, 2)):
        made[f"cube/{order}"] = permuted(cube, order)
        made[f"complex/{order}"] = permuted(cube + 1j * cube, order)
        made[f"half/{order}"] = permuted(cube.astype(np.float16), order)
    made["empty/permuted"] = Array("float32", (0, 3), np.empty(0, np.uint8), (1, 5))
    made["one/strided"] = Array("float32", (1, 3), dense(cube[0, :, 0]).data, (17, 1))
    indices = Array("int64", (1, 3), dense(np.array([[4, 0, 0]])).data)
    made["sparse"] = SparseArray((5, 2), indices, Array("float32", (3, 2), dense(cube[:3, :2, 0]).data), False)
    made["numpy"] = dense(np.arange(6).reshape(2, 3))
    return made


def test_every_dtype_and_layout_comes_back(tmp_path: Path) -> None:
    made = everything()
    with Checkpoint(write(tmp_path, made)) as checkpoint:
        assert list(checkpoint.names()) == list(made)
        for name, array in made.items():
            assert same(checkpoint.read(name), array), name
            assert checkpoint.layout(name) == (array.dtype, array.shape), name
        assert all(damage is None for _, damage in checkpoint.verify())


def test_the_safetensors_library_reads_the_same_values(tmp_path: Path) -> None:
    made = everything()
    path = write(tmp_path, made) / STATE
    with safetensors.safe_open(path, framework="numpy") as file:
        names = set(file.keys())
        assert {f"{name}#{part}" for name in made if name == "sparse" for part in ("indices", "values")} <= names
        assert names - {"sparse#indices", "sparse#values"} == set(made) - {"sparse"}
        loaded = {name: file.get_tensor(name) for name in names if name.partition("/")[0] not in NOT_NUMPY}
        kinds = {dtype: file.get_slice(f"{dtype}/(2, 3)").get_dtype() for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    assert kinds == {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
    for name, array in made.items():
        if isinstance(array, SparseArray) or array.dtype not in np.sctypeDict:
            continue
        values = np.frombuffer(array.data.tobytes(), array.dtype)
        if array.strides is not None and array.nbytes:
            values = np.lib.stride_tricks.as_strided(values, array.shape, [s * values.itemsize for s in array.strides])
        pairs = loaded[name]
        if array.dtype.startswith("complex"):
            pairs = np.ascontiguousarray(pairs).view(array.dtype)
        assert pairs.tobytes() == np.ascontiguousarray(values).tobytes(), name
        assert pairs.reshape(array.shape).dtype == array.dtype, name


def test_the_meta_tree_keeps_its_arrays_in_tensors(tmp_path: Path) -> None:
    meta = {
        "rng": np.arange(5000),
        "small": np.arange(3),
        "n": [1, None, "x"],
        "far": Array("bfloat16", (6000,), np.zeros(12000, np.uint8)),
    }
    with Checkpoint(write(tmp_path, {"w": dense(np.ones(3))}, meta)) as checkpoint:
        found = checkpoint.meta()
        assert list(checkpoint.names("aux/")) == ["aux/000000", "aux/000001"]
    assert np.array_equal(found["rng"], meta["rng"])
    assert np.array_equal(found["small"], meta["small"])
    assert found["n"] == [1, None, "x"]
    assert same(found["far"], meta["far"])


def test_a_snapshot_is_a_copy(tmp_path: Path) -> None:
    live = np.arange(1000.0)
    snapshot = Snapshot({"w": dense(live)}, {"rng": live, "n": 1})
    snapshot.encode(None)
    SnapshotPool().hold(snapshot)
    live[:] = -1
    write_checkpoint(tmp_path, NAME, snapshot, dict(ABOUT))
    with Checkpoint(tmp_path / NAME) as checkpoint:
        assert checkpoint.read("w").data.tobytes() == np.arange(1000.0).tobytes()  # type: ignore[union-attr]
        assert np.array_equal(checkpoint.meta()["rng"], np.arange(1000.0))


def read_all(folder: Path) -> dict[str, bytes]:
    with Checkpoint(folder) as checkpoint:
        found = {}
        for name in checkpoint.names():
            array = checkpoint.read(name)
            parts = [array] if isinstance(array, Array) else [array.indices, array.values]
            found[name] = b"".join(part.data.tobytes() for part in parts)
        found["meta"] = repr(checkpoint.meta()).encode()
        damages = [damage for _, damage in checkpoint.verify() if damage is not None]
        if damages:
            raise damages[0]
        return found


SMALL: dict[str, AnyArray] = {"w": dense(np.arange(300.0)), "s": everything()["sparse"]}


@given(st.sampled_from([STATE, META, MANIFEST]), st.data())
@settings(max_examples=campaign.examples(100))
def test_no_byte_can_change_unnoticed(tmp_path_factory: pytest.TempPathFactory, file: str, data: st.DataObject) -> None:
    folder = write(tmp_path_factory.mktemp("c"), SMALL, {"rng": np.arange(2000), "n": 1})
    sound = read_all(folder)
    path = folder / file
    raw = bytearray(path.read_bytes())
    at, flip = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(1, 255))
    raw[at] ^= flip
    path.write_bytes(raw)
    try:
        found = read_all(folder)
    except (CorruptCheckpoint, UnknownFormat):
        return
    assert file == MANIFEST, "only white space of the manifest may differ"
    assert found == sound
    assert json.loads(raw) == json.loads(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])


@pytest.mark.parametrize("point", ["state", "meta", "manifest", "publish"])
def test_a_failed_checkpoint_publishes_nothing_and_leaves_nothing(tmp_path: Path, point: str) -> None:
    with failing(f"checkpoint.{point}=enospc"), pytest.raises(OSError, match=f"checkpoint.{point}"):
        write(tmp_path, SMALL)
    assert list(tmp_path.iterdir()) == []
    assert read_all(write(tmp_path, SMALL))["w"] == np.arange(300.0).tobytes()
