"""Mutants of the core: log, catalog, checkpoints, recovery, journal, retention, shipping; and of command line and monitor."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the head is written before the rest of its record",
        "tranlogs/log/writer.py",
        """\
        segment.write([*record.pending, *rest] if is_pending else rest, start)
        hit("log.before_commit")
        segment.write_head(packed, offset)  # commit point for a killed process
""",
        """\
        hit("log.before_commit")
        segment.write_head(packed, offset)  # commit point for a killed process
        segment.write([*record.pending, *rest] if is_pending else rest, start)
""",
        ("tests/log/test_writer.py::test_the_head_is_written_last",),
    ),
    Mutant(
        "a record is begun without blocks for it",
        "tranlogs/log/writer.py",
        "self._preallocator.allocate(segment, segment.used_bytes + room)",
        "pass",
        (
            "tests/log/test_segments.py::test_a_record_without_blocks_goes_into_the_next_file_or_is_refused_before_it_is_written",
        ),
    ),
    Mutant(
        "the blocks of a whole segment are allocated ahead, however much space the disk has",
        "tranlogs/log/preallocator.py",
        "if self._allocates_late():",
        "if False:",
        (
            "tests/log/test_segments.py::"
            "test_a_young_log_takes_little_more_than_its_records_and_a_disk_that_fills_up_gives_it_whole_files",
        ),
    ),
    Mutant(
        "synced is claimed though the open segment was not flushed",
        "tranlogs/log/group_commit.py",
        "for segment in [*complete, *(opened if records else [])]:",
        "for segment in complete:",
        ("tests/log/test_group_commit.py::test_segments_are_synced_before_their_rows_are_committed_and_synced_comes_last",),
    ),
    Mutant(
        "a record that fails has defined what later ones refer to",
        "tranlogs/log/writer.py",
        """\
            after = self._write(record, segment, content, description, placed)
            definitions.written(record.payload.layout, placed, pack_place(record.offset, after.chain))
""",
        """\
            definitions.written(record.payload.layout, placed, pack_place(record.offset, self.position.chain))
            after = self._write(record, segment, content, description, placed)
""",
        ("tests/log/test_contents.py::test_records_are_read_as_they_were_written",),
    ),
    Mutant(
        "a scan takes records of the file's former life",
        "tranlogs/log/scanner.py",
        "if head is None or head.segment_id != segment_id or head.sequence < newest:",
        "if head is None or head.sequence < newest:",
        ("tests/log/test_segments.py::test_records_of_a_former_life_end_no_scan_and_enter_none",),
    ),
    Mutant(
        "the checksums of a tensor are not compared when it is replayed",
        "tranlogs/log/reader.py",
        "if checksum_of(out[at:to]) != self._sum(i):",
        "if checksum_of(out[at:to]) == -1:",
        ("tests/verify/test_verify.py::test_loss_at_the_end_of_the_log_is_said_once_with_what_it_costs",),
    ),
    Mutant(
        "the checksums of a tensor are not compared when it is verified",
        "tranlogs/log/reader.py",
        "if checksum_of(into) != self._sum(i):",
        "if checksum_of(into) == -1:",
        ("tests/verify/test_verify.py::test_damaged_tensor_is_named_with_file_step_and_name",),
    ),
    Mutant(
        "the checksum of a catalog's row is not compared",
        "tranlogs/catalog/tables.py",
        "if xxhash.xxh3_64_digest(key + raw[8:]) != raw[:8]:",
        "if len(raw) < 8:",
        ("tests/catalog/test_rebuild.py::test_rows_that_only_the_catalog_has_survive_a_rebuild",),
    ),
    Mutant(
        "LMDB opens a catalog whose meta pages were not checked",
        "tranlogs/catalog/lmdb_environment.py",
        "            problems = _check_meta_pages(path)\n",
        "            problems: list[str] = []\n",
        ("tests/verify/test_corruption.py::test_no_bit_of_the_catalogs_meta_pages_kills_the_process",),
    ),
    Mutant(
        "a catalog of another time is believed",
        "tranlogs/rebuild_catalog.py",
        'which is there" if unlisted else ""',
        'which is there" if len(unlisted) > 999 else ""',
        ("tests/catalog/test_rebuild.py::test_a_catalog_that_does_not_fit_the_files_is_rebuilt_from_them",),
    ),
    Mutant(
        "recovery lands on a step that has no boundary",
        "tranlogs/recovery/recovery_plan.py",
        "    while end and not links[end - 1].kind.is_boundary:\n        end -= 1\n",
        "",
        ("tests/recovery/test_plan.py::test_where_recovery_starts_and_lands",),
    ),
    Mutant(
        "a segment with one record behind the oldest checkpoint is retired",
        "tranlogs/retention/prune.py",
        "row.last_sequence <= horizon",
        "row.last_sequence <= horizon + 1",
        ("tests/retention/test_retention.py::test_segments_behind_the_oldest_kept_checkpoint_go",),
    ),
    Mutant(
        "the monitor prunes a segment with one record behind the newest checkpoint",
        "tranlogs/retention/prune.py",
        "if row.last_sequence <= anchor.sequence:",
        "if row.last_sequence <= anchor.sequence + 1:",
        (
            "tests/retention/test_retention.py::test_what_lies_behind_the_checkpoint_on_the_lineage_is_protected_from_the_monitor",
        ),
    ),
    Mutant(
        "a checkpoint that failed leaves its folder",
        "tranlogs/checkpoints/writer.py",
        "        shutil.rmtree(folder, ignore_errors=True)\n        raise\n",
        "        raise\n",
        ("tests/checkpoints/test_checkpoint.py::test_a_failed_checkpoint_publishes_nothing_and_leaves_nothing",),
    ),
    Mutant(
        "the owner's lock is one of the process, which any close of the file drops",
        "tranlogs/journal/owner_lock.py",
        "fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))",
        "fcntl.fcntl(fd, fcntl.F_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))",
        ("tests/journal/test_ownership.py::test_the_other_roles_keep_their_lock_and_notice_its_loss",),
    ),
    Mutant(
        "a step counts as committed before its boundary is in the log",
        "tranlogs/log/writer.py",
        "self.group.add_record(row, after if ends_unit else None)",
        "self.group.add_record(row, after)",
        ("tests/journal/test_journal.py::test_steps_count_once_a_boundary_follows",),
    ),
    Mutant(
        "an incident replaces another one",
        "tranlogs/journal/suspension.py",
        "return known[-1].number + 1 if known else 1",
        "return len(known) + 1",
        ("tests/journal/test_suspension.py::test_an_incident_replaces_no_other_after_a_row_was_lost",),
    ),
    Mutant(
        "the pause before logging is tried again grows without a bound",
        "tranlogs/journal/suspension.py",
        "self.delay = min(self.delay * 2, RETRY_SECONDS_MAX)",
        "self.delay = self.delay * 2",
        ("tests/journal/test_io_errors.py::test_retries_become_rarer_and_go_on_for_ever",),
    ),
    Mutant(
        "a queue of tiny steps has no bound",
        "tranlogs/log/writer_thread.py",
        "if len(self._jobs) >= QUEUE_JOBS_MAX:",
        "if len(self._jobs) < 0:",
        ("tests/journal/test_writer_thread.py::test_a_full_queue_makes_the_training_thread_wait",),
    ),
    Mutant(
        "a request is granted though the run was rewound since",
        "tranlogs/catalog/tables.py",
        "if self.timelines is not None and self.timelines != ",
        "if self.timelines is None and self.timelines != ",
        ("tests/journal/test_requests.py::test_a_change_is_made_by_the_owner_or_by_the_asker",),
    ),
    Mutant(
        "a segment in whose middle the newest checkpoint lies may be pruned",
        "tranlogs/retention/prune.py",
        "    if row.last_sequence <= anchor.sequence:\n        return False",
        "    if row.base_sequence <= anchor.sequence:\n        return False",
        ("tests/retention/test_pruning.py",),
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
