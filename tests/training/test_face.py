"""The face of the core: the names that an integration may import, and no integration imports another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tranlogs.ranks
import tranlogs.records
import tranlogs.training

ROOT = Path(__file__).parents[2]
INTEGRATIONS = ("tranlogs_torch", "tranlogs_keras", "tranlogs_demo")
FACE = {"tranlogs", "tranlogs.training", "tranlogs.records", "tranlogs.ranks"}

TRAINING = """
Automatic CAUSES CHANGED_NOW CheckpointPolicy Curve Decoded Digests Divergence EverySteps ExpectedWrites Face Fingerprint
FIRST_UNITS
FixedCache FROM_FIRST_EPOCH GRACE_SECONDS GradientLayout HostRng Journal LastUnit LibraryObject LiveReport LOOP_LENGTH
LoopDecision LoopRecord LoopSequence LoopState Mode
Monitor NO_UNIT NumberLists OfflineReplay OnSignal PENDING Place Progress REMEMBERED_NAMES Recheck RecomputedUnit Recovered
RecoveryReport
Remembered ReplayCheck RetentionPolicy RunOptions RunResources RunSettings ScalarHistory ScanSchedule StateDigests
StepRecorder TurnData UnkeptVariables UNKNOWN_DATA Unstorable announce as_retention check_epochs compare_environments
decode_entries demand_storable describe_difference describe_end describe_equal describe_moved describe_not_computed
describe_replacement describe_script_change digest_of find_changed_elements forecast_writes full_digests is_below
is_rounding is_same is_same_state is_set_as_a_whole judge_exactness make_report name_loop numpy_state path_of_remembered
prepare_run_id progress_bar python_state read_facts read_memory_of recover redo_in_order
restore_numbers set_host_rng
some_bytes when_full window_of
"""
RECORDS = """
Checkpoint Entry EntryKind Fixed Layout NO_TENSORS Payload Snapshot SparseForm Tensor
array_of spec_of to_numpy tree
"""
RANKS = """
Damage FindObstacle FormerState GradientShards GroupRecovered GroupRecovery JoinedEntry ReplacementSource SingleReader Transport
agree extend_timeline_ids get_first_timeline_id is_of_group is_sharded list_journals new_timeline_id
read_environment read_generations read_owner
"""


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import from the core, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names if node.module.split(".")[0] == "tranlogs")
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "tranlogs")


def all_imports() -> list[tuple[Path, str, str]]:
    files = [path for name in INTEGRATIONS for path in (ROOT / "integrations" / name).rglob("*.py")]
    return [(path, module, name) for path in files for module, name in imported(path)]


@pytest.mark.parametrize(
    ("module", "names"), [(tranlogs.training, TRAINING), (tranlogs.records, RECORDS), (tranlogs.ranks, RANKS)]
)
def test_the_public_names_are_pinned(module: object, names: str) -> None:
    assert sorted(module.__all__) == sorted(names.split())  # type: ignore[attr-defined]


def test_an_integration_imports_only_the_face_and_the_base() -> None:
    found = [(path, module) for path, module, _ in all_imports() if module.split(".")[:2] != ["tranlogs", "base"]]
    assert [(str(path), module) for path, module in found if module not in FACE] == []


def test_each_public_name_is_imported_by_an_integration() -> None:
    imports = {(module, name) for _, module, name in all_imports()}
    for module in (tranlogs.training, tranlogs.records, tranlogs.ranks):
        assert [name for name in module.__all__ if (module.__name__, name) not in imports] == []
