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
announce as_retention Automatic CAUSES CHANGED_NOW check_epochs CheckpointPolicy compare_environments Curve decode_entries
Decoded demand_storable describe_difference describe_end describe_equal describe_moved describe_not_computed
describe_replacement describe_script_change describe_unset digest_of Digests Divergence EverySteps ExpectedWrites Face
describe_weights_read find_changed_elements Fingerprint FIRST_UNITS FixedCache forecast_writes Framework
full_digests GRACE_SECONDS GradientLayout
HostRng LEFT_NOW is_below is_rounding is_same is_same_state is_set_as_a_whole join_python join_torch Journal judge_exactness
LastUnit LiveReport LOOP_LENGTH split_python split_torch
LoopDecision LoopRecord LoopSequence LoopState make_report Mode Monitor name_loop NO_UNIT NumberLists numpy_state
OfflineReplay OnSignal path_of_remembered PENDING Place prepare_run_id Progress progress_bar python_state read_facts
read_memory_of Recheck RecomputedUnit recover Recovered RecoveryReport redo_in_order Remembered REMEMBERED_NAMES ReplayCheck
Restarts restore_numbers RetentionPolicy RunOptions RunResources RunSettings ScalarHistory ScanSchedule set_host_rng
some_bytes StateDigests StepRecorder TurnData UNKNOWN_DATA Unstorable when_full window_of
"""
RECORDS = """
BodyEncoder Checkpoint decode_part Entry Fixed Layout NO_TENSORS Payload Snapshot SparseForm Tensor
array_of spec_of to_numpy tree
"""
RANKS = """
Damage FindObstacle FormerState GradientShards GroupRecovered GroupRecovery JoinedEntry OwnJournal ReplacementSource
SingleReader Solo StepEntry Transport
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
