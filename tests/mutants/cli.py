"""Mutants of command line, monitor, shipping and stores."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a segment in whose middle the newest checkpoint lies may be pruned",
        "tranlogs/retention/prune.py",
        "    if row.last_sequence <= anchor.sequence:\n        return False",
        "    if row.base_sequence <= anchor.sequence:\n        return False",
        ("tests/monitor/test_pruning.py",),
    ),
    Mutant(
        "a monitor passes over the hold of a trainer that is being wound back",
        "monitor/tranlogs_monitor/watching/watch.py",
        'return hold is not None and (bool(hold.get("outlives")) or not self._is_abandoned())',
        'return hold is not None and bool(hold.get("outlives"))',
        ("tests/monitor/test_watch.py::test_what_a_rewind_needs_stays",),
    ),
    Mutant(
        "the dashboard answers to any host name on a loopback address",
        "monitor/tranlogs_monitor/dashboard/routes.py",
        'if not self._access.allows_host(request.headers.get("host")):',
        'if self._access.token is not None and not self._access.allows_host(request.headers.get("host")):',
        ("tests/monitor/test_dashboard.py::test_who_is_answered",),
    ),
    Mutant(
        "an archiver believes that a store has kept all of a manifest",
        "tranlogs/shipping/manifest.py",
        "if status is None or not status.is_complete or status.nbytes != len(raw):",
        "if status is None:",
        ("tests/shipping/test_plan.py::test_a_manifest_that_is_not_there_as_it_was_written_is_no_manifest",),
    ),
    Mutant(
        "what the durable manifest names is deleted as soon as a newer manifest is written",
        "tranlogs/shipping/inventory.py",
        "needed = self._manifests.durable_objects().union(",
        "needed = set[str]().union(",
        ("tests/shipping/test_archiver.py::test_what_the_durable_manifest_names_stays_until_a_newer_one_is_durable",),
    ),
    Mutant(
        "the digest of what is fetched from a store is not compared",
        "tranlogs/shipping/fetch.py",
        "                if into.digest.hexdigest() != digest:\n",
        "                if not digest:\n",
        ("tests/shipping/test_pull.py::test_what_is_damaged_in_the_store_is_named_and_worked_around",),
    ),
    Mutant(
        "`verify --json` ends with 0 where it has named damage",
        "tranlogs/cli/commands/verify.py",
        "return PROBLEM if any(about.problems for about in found) else FINE",
        "return PROBLEM if not as_json and any(about.problems for about in found) else FINE",
        ("tests/cli/test_commands.py::test_damage_is_named_with_its_file_and_gives_no_traceback",),
    ),
)
