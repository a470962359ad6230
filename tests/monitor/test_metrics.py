"""/metrics tells what the catalog has, over a real connection."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitor.test_watch import run, watching
from tests.shipping.ships import archiver, ship
from tests.support.faulty_store import FaultyStore
from tests.support.toy import ToyTrainer
from tranlogs.base.config import MIB
from tranlogs.base.errors import UsageError
from tranlogs.retention.prune import Budget
from tranlogs_monitor.dashboard.access.access_rules import address_of
from tranlogs_monitor.dashboard.metrics import Metrics
from tranlogs_monitor.dashboard.pages.board import Board
from tranlogs_monitor.dashboard.server import WebServer
from tranlogs_monitor.settings import DaemonSettings

__all__ = ["run"]


@pytest.fixture
def served() -> Iterator[tuple[Metrics, int]]:
    metrics = Metrics()
    server = WebServer(("127.0.0.1", 0), metrics, Board(DaemonSettings()))
    yield metrics, server.port
    server.close()


def asked(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and labels but for the journal's."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "journal")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_those_of_the_catalog(run: ToyTrainer, served: tuple[Metrics, int]) -> None:
    metrics, port = served
    watch = watching(run, budget=Budget(100 * MIB))
    metrics.note(run.journal.paths.folder, watch.evaluate())
    watch.close()
    code, text = asked(port, "/metrics")
    assert code == 200
    found, rows = samples(text), run.journal.catalog.segments()
    assert found["tranlogs_step", "committed"] == run.journal.catalog.watermarks().committed == 31
    assert found["tranlogs_bytes", "log"] == sum(row.size for row in rows)
    assert found["tranlogs_bytes", "checkpoints"] == sum(row.nbytes for row in run.journal.catalog.checkpoints())
    assert found["tranlogs_budget_bytes",] == 100 * MIB
    assert found["tranlogs_segments", "sealed"] == 6
    assert found["tranlogs_protected_segments",] == 2
    assert found["tranlogs_anchor_step",] == 20
    assert found["tranlogs_trainer_alive",] == found["tranlogs_watched",] == 1
    assert found["tranlogs_logging_suspended",] == found["tranlogs_over_budget",] == found["tranlogs_pruned_bytes_total",] == 0
    assert f'journal="{run.journal.paths.folder}"' in text


def test_a_store_is_seen(run: ToyTrainer, served: tuple[Metrics, int]) -> None:
    metrics, port = served
    paths = run.journal.paths
    store = FaultyStore()
    store.is_durable = False
    watch = watching(run)
    metrics.note(paths.folder, watch.evaluate())
    assert not any(name[0].startswith("tranlogs_store") for name in samples(asked(port, "/metrics")[1])), "there is none"
    archived = ship(paths.folder.parent, store).archived
    metrics.note(paths.folder, watch.evaluate())
    found = samples(asked(port, "/metrics")[1])
    assert found["tranlogs_store_ok",] == 1
    assert found["tranlogs_store_lag_steps", "archived"] == run.journal.catalog.watermarks().committed - archived
    assert found["tranlogs_store_bytes",] == sum(len(data) for name, data in store.objects.items() if "/objects/" in name)
    store.fails = lambda method, name: True
    made = archiver(paths.folder.parent, store)
    made.run_once()
    made.close()
    metrics.note(paths.folder, watch.evaluate())
    assert samples(asked(port, "/metrics")[1])["tranlogs_store_ok",] == 0
    watch.close()


def test_what_was_pruned_is_counted_and_what_cannot_be_watched_is_seen(run: ToyTrainer, served: tuple[Metrics, int]) -> None:
    metrics, port = served
    watch = watching(run, budget=Budget(2 * MIB))
    watch.evaluate()
    metrics.note(run.journal.paths.folder, watch.evaluate())
    watch.close()
    found = samples(asked(port, "/metrics")[1])
    assert found["tranlogs_pruned_bytes_total",] > 4 * MIB
    assert found["tranlogs_over_budget",] == 1
    metrics.note(run.journal.paths.folder, None)
    assert samples(asked(port, "/metrics")[1])["tranlogs_watched",] == 0
    metrics.forget(run.journal.paths.folder)
    assert ("tranlogs_watched",) not in samples(asked(port, "/metrics")[1])


def test_the_server_is_read_only(served: tuple[Metrics, int]) -> None:
    _, port = served
    assert asked(port, "/healthz") == (200, "ok\n")
    assert asked(port, "/metrics", "HEAD") == (200, "")
    assert asked(port, "/../catalog.lmdb")[0] == 404
    for method in ("POST", "PUT", "DELETE"):
        assert asked(port, "/metrics", method)[0] == 405


def test_addresses() -> None:
    assert address_of(":9464") == address_of("9464") == ("127.0.0.1", 9464)
    assert address_of("0.0.0.0:80") == ("0.0.0.0", 80)
    assert address_of("[::1]:80") == ("::1", 80)
    for wrong in ("", "web", ":x", ":70000", ":²"):
        with pytest.raises(UsageError, match="--http"):
            address_of(wrong)


def test_a_port_that_is_taken_is_named(served: tuple[Metrics, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"127.0.0.1:{served[1]}: cannot listen on this address"):
        WebServer(("127.0.0.1", served[1]), Metrics(), Board(DaemonSettings()))
