"""The code that all integrations share: settings, resources, the step recorder, fingerprints, scans for foreign writes, random
state, the redo driver, replay without the script, and the comparison of environments.

An integration imports from the core only what this package, `tranlogs.records` and `tranlogs.ranks` list, and `tranlogs.base`.
"""

from ..journal.journal import Journal
from ..journal.shutdown import GRACE_SECONDS, OnSignal
from ..recovery.history import PASSES, LastUnit
from ..recovery.journal_facts import describe_replacement, read_facts
from ..recovery.recover import Progress, Recovered, recover
from ..recovery.recovery_plan import Target
from ..recovery.report import RecoveryReport, judge_exactness, make_report, progress_bar
from ..recovery.state_protocol import Divergence
from ..retention import Automatic, CheckpointPolicy, EverySteps, Monitor, RetentionPolicy, as_retention
from ..retention.keep_policy import when_full
from .boundary_log import BoundaryLog, GroupDecision
from .comparison import LEFT_NOW, describe_script_change, is_below
from .fingerprint import Digests, Fingerprint, Mode, digest_of, some_bytes, window_of
from .gradient_layout import GradientLayout
from .live_report import UNKNOWN_DATA, Face, LiveReport, TurnData, announce, describe_end
from .loop_sequence import LOOP_LENGTH, LoopDecision, LoopRecord, LoopSequence, name_loop
from .loop_state import LoopState, NumberLists, Remembered, Unstorable, demand_storable, restore_numbers
from .offline import OfflineReplay
from .recheck import UnitComparison
from .recheck_messages import (
    CAUSES,
    REMEMBERED_NAMES,
    SHOWS_NO_TENSORS,
    describe_difference,
    describe_equal,
    describe_not_computed,
    describe_superseded,
    is_rounding,
    name_missing_unit,
    path_of_remembered,
)
from .recomputed_unit import RecomputedUnit
from .recorder import Parts, ReplayCheck, StepRecorder, is_same
from .redo import Decoded, StateDigests, decode_entries, redo_in_order
from .resources import RunResources, compare_environments, prepare_run_id
from .restarts import Framework, Restarts, describe_unset, describe_weights_read
from .rng import (
    HostRng,
    is_same_state,
    join_python,
    join_torch,
    numpy_state,
    python_state,
    read_memory_of,
    set_host_rng,
    split_python,
    split_torch,
)
from .rungs import FollowedRung, Rung, choose_rung, parse_overhead
from .scalars import Curve, ScalarHistory
from .settings import RunSettings, check_epochs
from .write_forecast import FIRST_UNITS, ExpectedWrites, Place, ScanSchedule, forecast_inputs, forecast_trial, forecast_writes

__all__ = [
    "CAUSES",
    "FIRST_UNITS",
    "GRACE_SECONDS",
    "LEFT_NOW",
    "LOOP_LENGTH",
    "PASSES",
    "REMEMBERED_NAMES",
    "SHOWS_NO_TENSORS",
    "UNKNOWN_DATA",
    "Automatic",
    "BoundaryLog",
    "CheckpointPolicy",
    "Curve",
    "Decoded",
    "Digests",
    "Divergence",
    "EverySteps",
    "ExpectedWrites",
    "Face",
    "Fingerprint",
    "FollowedRung",
    "Framework",
    "GradientLayout",
    "GroupDecision",
    "HostRng",
    "Journal",
    "LastUnit",
    "LiveReport",
    "LoopDecision",
    "LoopRecord",
    "LoopSequence",
    "LoopState",
    "Mode",
    "Monitor",
    "NumberLists",
    "OfflineReplay",
    "OnSignal",
    "Parts",
    "Place",
    "Progress",
    "RecomputedUnit",
    "Recovered",
    "RecoveryReport",
    "Remembered",
    "ReplayCheck",
    "Restarts",
    "RetentionPolicy",
    "RunResources",
    "RunSettings",
    "Rung",
    "ScalarHistory",
    "ScanSchedule",
    "StateDigests",
    "StepRecorder",
    "Target",
    "TurnData",
    "UnitComparison",
    "Unstorable",
    "announce",
    "as_retention",
    "check_epochs",
    "choose_rung",
    "compare_environments",
    "decode_entries",
    "demand_storable",
    "describe_difference",
    "describe_end",
    "describe_equal",
    "describe_not_computed",
    "describe_replacement",
    "describe_script_change",
    "describe_superseded",
    "describe_unset",
    "describe_weights_read",
    "digest_of",
    "forecast_inputs",
    "forecast_trial",
    "forecast_writes",
    "is_below",
    "is_rounding",
    "is_same",
    "is_same_state",
    "join_python",
    "join_torch",
    "judge_exactness",
    "make_report",
    "name_loop",
    "name_missing_unit",
    "numpy_state",
    "parse_overhead",
    "path_of_remembered",
    "prepare_run_id",
    "progress_bar",
    "python_state",
    "read_facts",
    "read_memory_of",
    "recover",
    "redo_in_order",
    "restore_numbers",
    "set_host_rng",
    "some_bytes",
    "split_python",
    "split_torch",
    "when_full",
    "window_of",
]
