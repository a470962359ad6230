"""Mutants of the log, the catalog, checkpoints and recovery."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the head is written before the rest of its record",
        "tranlogs/log/writer.py",
        """\
        segment.write([*pieces.pending, *rest] if is_pending else rest, start)
        hit("log.before_commit")
        segment.write_head(packed, offset)  # commit point for a killed process
""",
        """\
        hit("log.before_commit")
        segment.write_head(packed, offset)  # commit point for a killed process
        segment.write([*pieces.pending, *rest] if is_pending else rest, start)
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
            after = self._write(record, pieces, content, description, placed)
            definitions.written(record.payload.layout, placed, pack_place(pieces.offset, after.chain))
""",
        """\
            definitions.written(record.payload.layout, placed, pack_place(pieces.offset, self.position.chain))
            after = self._write(record, pieces, content, description, placed)
""",
        ("tests/log/test_contents.py::test_a_record_that_failed_does_not_spoil_what_later_ones_refer_to",),
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
)
