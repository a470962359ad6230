"""Recovery of a run of several ranks, as an integration coordinates it. Names only; nothing is defined here."""

from .journal import read_owner
from .recovery.group.decide import Damage, agree
from .recovery.group.exchange import OwnJournal, Solo, Transport
from .recovery.group.group_state import FormerState
from .recovery.group.journals import is_of_group, is_sharded, list_journals, read_environment, read_generations
from .recovery.group.plan import FindObstacle
from .recovery.group.reader import SingleReader
from .recovery.group.recover import GroupRecovered, GroupRecovery
from .recovery.group.shards import GradientShards, JoinedRecord, StepRecord
from .recovery.group.summary import extend_timeline_ids, get_first_timeline_id, get_timeline_ids, new_timeline_id
from .recovery.state_protocol import ReplacementSource

__all__ = [
    "Damage",
    "FindObstacle",
    "FormerState",
    "GradientShards",
    "GroupRecovered",
    "GroupRecovery",
    "JoinedRecord",
    "OwnJournal",
    "ReplacementSource",
    "SingleReader",
    "Solo",
    "StepRecord",
    "Transport",
    "agree",
    "extend_timeline_ids",
    "get_first_timeline_id",
    "get_timeline_ids",
    "is_of_group",
    "is_sharded",
    "list_journals",
    "new_timeline_id",
    "read_environment",
    "read_generations",
    "read_owner",
]
