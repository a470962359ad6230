"""What all integrations share: settings, resources, the step recorder, fingerprints, scans for foreign writes, random state.

An integration imports from the core only what this package, `tranlogs.records` and `tranlogs.ranks` list, and `tranlogs.base`.
"""

from ..journal import Journal
from ..journal.process.shutdown import GRACE_SECONDS, OnSignal
from ..recovery import Divergence, RecoveryReport, read_facts
from ..recovery.facts import describe_replacement
from ..recovery.progress import progress_bar
from ..recovery.recover import Progress, Recovered, recover
from ..recovery.verdict import judge_exactness, make_report
from ..retention import CheckpointPolicy, EverySteps, Monitor, RetentionPolicy, as_retention
from ..retention.keep_policy import when_full
from .fingerprint import Digests, Fingerprint, Mode, digest_of, full_digests, some_bytes, window_of
from .gradient_layout import GradientLayout
from .recorder import FixedCache, ReplayCheck, StepRecorder, is_same
from .report import LiveReport
from .resources import RunResources
from .rng import HostRng, is_same_state, numpy_state, python_state, set_host_rng
from .scalars import Curve, ScalarHistory
from .settings import RunSettings
from .write_scans import FIRST_UNITS, Place, ScanSchedule

__all__ = [
    "FIRST_UNITS",
    "GRACE_SECONDS",
    "CheckpointPolicy",
    "Curve",
    "Digests",
    "Divergence",
    "EverySteps",
    "Fingerprint",
    "FixedCache",
    "GradientLayout",
    "HostRng",
    "Journal",
    "LiveReport",
    "Mode",
    "Monitor",
    "OnSignal",
    "Place",
    "Progress",
    "Recovered",
    "RecoveryReport",
    "ReplayCheck",
    "RetentionPolicy",
    "RunResources",
    "RunSettings",
    "ScalarHistory",
    "ScanSchedule",
    "StepRecorder",
    "as_retention",
    "describe_replacement",
    "digest_of",
    "full_digests",
    "is_same",
    "is_same_state",
    "judge_exactness",
    "make_report",
    "numpy_state",
    "progress_bar",
    "python_state",
    "read_facts",
    "recover",
    "set_host_rng",
    "some_bytes",
    "when_full",
    "window_of",
]
