"""How the test cluster is configured: what every process reads, and what only one of them is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import ports

_HERE = "127.0.0.1"

_PORTS = (
    "master.rpc",
    "master.web",
    "job.master.rpc",
    "job.master.web",
    "worker.rpc",
    "worker.web",
    "job.worker.rpc",
    "job.worker.data",
    "job.worker.web",
    "proxy.web",
)

STANDARD_PORTS = dict(zip(_PORTS, (19998, 19999, 20001, 20002, 29999, 30000, 30001, 30002, 30003, 39999), strict=True))


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of process: its main class, and its limits of heap and of memory outside the heap."""

    main: str
    heap: str
    direct: str


ROLES: Mapping[str, Role] = {
    "master": Role("alluxio.master.AlluxioMaster", "512m", "256m"),
    "job-master": Role("alluxio.master.AlluxioJobMaster", "256m", "128m"),
    "worker": Role("alluxio.worker.AlluxioWorker", "384m", "512m"),
    "job-worker": Role("alluxio.worker.AlluxioJobWorker", "384m", "384m"),
    "proxy": Role("alluxio.proxy.AlluxioProxy", "512m", "512m"),
    "format": Role("alluxio.cli.Format", "128m", "64m"),
}


def free_ports() -> dict[str, int]:
    """Return a free port of each kind; a process that is killed finds its port free when it comes back."""
    return dict(zip(_PORTS, ports.free_ports(len(_PORTS)), strict=True))


@dataclass(frozen=True, slots=True)
class Settings:
    """What differs between clusters.

    Attributes:
        workers: how many; each has an address of its own (copies go to workers of different host names).
        memory: bytes of each worker's memory tier, as Alluxio writes them.
        persists: whether there are a job master and job workers, which write what is in memory to the under-store.
        is_impatient: start fast, and notice the dead within seconds and not minutes: for tests. Else as Alluxio comes.
        ports: by the names in STANDARD_PORTS.
        more: properties beside these.
    """

    workers: int = 2
    memory: str = "1GB"
    persists: bool = True
    is_impatient: bool = True
    ports: Mapping[str, int] = field(default_factory=free_ports)
    more: Mapping[str, str] = field(default_factory=dict)

    def properties(self, home: Path, under_store: Path) -> dict[str, object]:
        """alluxio-site.properties."""
        found: dict[str, object] = {
            # Every name and every bound address is a loopback one: none is looked up.
            "alluxio.home": home,
            "alluxio.work.dir": home,
            **{
                f"alluxio.{who}": _HERE
                for who in (
                    "master.hostname",
                    "master.bind.host",
                    "master.web.hostname",
                    "master.web.bind.host",
                    "job.master.hostname",
                    "job.master.bind.host",
                    "job.master.web.bind.host",
                    "proxy.web.hostname",
                    "proxy.web.bind.host",
                    "user.hostname",
                    "locality.node",
                )
            },
            **{f"alluxio.{name}.port": port for name, port in self.ports.items()},
            "alluxio.master.mount.table.root.ufs": under_store,
            # Masters: a journal of plain files, metadata on the heap, no pages, no calls to the outside, short safe mode.
            "alluxio.master.journal.type": "UFS",
            "alluxio.master.journal.folder": home / "journal",
            "alluxio.master.journal.tailer.shutdown.quiet.wait.time": "100ms",
            "alluxio.master.journal.tailer.sleep.time": "200ms",
            "alluxio.master.metastore": "HEAP",
            "alluxio.master.metastore.inode": "HEAP",
            "alluxio.master.metastore.block": "HEAP",
            "alluxio.master.update.check.enabled": "false",
            "alluxio.master.throttle.enabled": "false",
            "alluxio.master.worker.connect.wait.time": "2sec",
            "alluxio.master.worker.info.cache.refresh.time": "300ms",
            "alluxio.master.rpc.executor.core.pool.size": "16",
            "alluxio.web.ui.enabled": "false",
            "alluxio.web.threads": "8",
            "alluxio.exit.collect.info": "false",
            # Workers: a memory tier in a plain folder.
            "alluxio.worker.ramdisk.size": self.memory,
            "alluxio.worker.tieredstore.levels": "1",
            "alluxio.worker.tieredstore.level0.alias": "MEM",
            "alluxio.worker.fuse.enabled": "false",
            "alluxio.job.worker.threadpool.size": "2",
            # The proxy speaks the REST API that alluxio-py needs only where S3's second version is off.
            "alluxio.proxy.s3.v2.version.enabled": "false",
            "alluxio.proxy.s3.v2.async.processing.enabled": "false",
            "alluxio.user.block.size.bytes.default": "16MB",
            "alluxio.user.file.reserved.bytes": "1MB",
            "alluxio.user.short.circuit.enabled": "false",
            "alluxio.user.worker.list.refresh.interval": "1sec",
            "alluxio.user.conf.sync.interval": "10min",
            # Everything runs as one user, who may not be able to chown.
            "alluxio.security.authentication.type": "SIMPLE",
            "alluxio.underfs.allow.set.owner.failure": "true",
            # Stopping takes no time.
            "alluxio.network.connection.server.shutdown.timeout": "2sec",
            "alluxio.network.connection.shutdown.graceful.timeout": "1sec",
            "alluxio.network.connection.shutdown.timeout": "1sec",
            "alluxio.worker.network.netty.shutdown.quiet.period": "0sec",
            "alluxio.worker.network.shutdown.timeout": "2sec",
        }
        return found | (_IMPATIENT if self.is_impatient else {}) | dict(self.more)

    def of_process(self, name: str, home: Path) -> dict[str, object]:
        """What one process alone is told, on its command line."""
        role, number = role_of(name)
        if role == "proxy":  # short only here: a master with a short retry drops requests to persist
            short = {"alluxio.user.rpc.retry.max.duration": "5sec", "alluxio.user.file.write.init.max.duration": "5sec"}
            return short | (_AGAINST if self.is_impatient else {})
        if number is None:
            return {}
        host = f"127.0.0.{1 + number}"
        who = (
            "worker.hostname",
            "worker.bind.host",
            "worker.web.hostname",
            "worker.web.bind.host",
            "job.worker.hostname",
            "job.worker.bind.host",
            "job.worker.web.bind.host",
            "locality.node",
        )
        return {f"alluxio.{key}": host for key in who} | {
            "alluxio.worker.tieredstore.level0.dirs.path": memory_of(home, number)
        }


def role_of(name: str) -> tuple[str, int | None]:
    """ "worker-1" is ("worker", 1), "proxy" is ("proxy", None)."""
    role, _, number = name.rpartition("-")
    return (role, int(number)) if number.isdigit() else (name, None)


def memory_of(home: Path, number: int) -> Path:
    """Where a worker's memory tier lies."""
    return home / f"memory-{number}"


# Defaults of a proxy under which nothing would ever be persisted: every write is to say itself what it wants.
_AGAINST = {
    "alluxio.user.file.writetype.default": "MUST_CACHE",
    "alluxio.user.file.persistence.initial.wait.time": "-1",
}

_IMPATIENT = {
    "alluxio.master.persistence.scheduler.interval": "100ms",
    "alluxio.master.persistence.checker.interval": "100ms",
    "alluxio.master.persistence.initial.interval": "200ms",
    "alluxio.master.persistence.max.interval": "2sec",
    "alluxio.job.master.worker.heartbeat.interval": "400ms",
    "alluxio.job.master.worker.timeout": "10sec",
    "alluxio.worker.block.heartbeat.interval": "500ms",
    "alluxio.master.worker.timeout": "12sec",  # a worker on a busy machine must not look dead: LOST stays
    "alluxio.master.lost.worker.detection.interval": "500ms",
    "alluxio.master.lost.worker.file.detection.interval": "500ms",
    "alluxio.user.block.read.retry.max.duration": "3sec",
    "alluxio.user.rpc.retry.max.sleep": "500ms",
}
