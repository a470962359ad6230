"""Recovery of a run of several ranks, as an integration coordinates it. Names only; nothing is defined here."""

from .journal import read_owner
from .recovery.group.common_unit import FindObstacle
from .recovery.group.decision.agreement import Damage, agree
from .recovery.group.gradient_shards import GradientShards, JoinedEntry
from .recovery.group.group_recovery import GroupRecovery
from .recovery.group.group_state import FormerState
from .recovery.group.journal_access import Transport
from .recovery.group.outcome import GroupRecovered
from .recovery.group.single_process_recovery import SingleReader
from .recovery.group.summary.log_summary import list_journals, read_environment, read_generations
from .recovery.group.summary.recorded_environment import is_of_group, is_sharded
from .recovery.group.summary.timeline_ids import extend_timeline_ids, get_first_timeline_id, new_timeline_id
from .recovery.state_protocol import ReplacementSource

__all__ = [
    "Damage",
    "FindObstacle",
    "FormerState",
    "GradientShards",
    "GroupRecovered",
    "GroupRecovery",
    "JoinedEntry",
    "ReplacementSource",
    "SingleReader",
    "Transport",
    "agree",
    "extend_timeline_ids",
    "get_first_timeline_id",
    "is_of_group",
    "is_sharded",
    "list_journals",
    "new_timeline_id",
    "read_environment",
    "read_generations",
    "read_owner",
]
