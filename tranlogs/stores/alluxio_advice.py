"""Advice to people on the problems of an Alluxio cluster, chosen by the text of the problem."""

from __future__ import annotations

import re

_ADVICE = (
    (r"alluxio\.proxy\.s3\.v2", ""),  # the message itself has the advice
    (
        r"does not speak HTTP",
        "use the port of the proxy (alluxio.proxy.web.port, by default 39999), not that of a master or worker",
    ),
    (r"name cannot be resolved", "correct the host name"),
    (
        r"refused|Max retries|timed out|Name or service|unreachable|reset by peer",
        "start the proxy (`alluxio-start.sh proxy`), or correct host and port (alluxio.proxy.web.port, by default 39999)",
    ),
    (
        r"connect to master",
        "start the master (`alluxio-start.sh master`), and set alluxio.master.hostname in the proxy's settings to it",
    ),
    (
        r"\b0 of \d+ copies",
        "data bypass the workers' memory: raise alluxio.worker.ramdisk.size, and leave "
        "alluxio.user.file.ufs.tier.enabled=false in the proxies' settings",
    ),
    (
        r"write type is not honoured",
        "use the address of an Alluxio 2.9 proxy (Alluxio 3 has no ASYNC_THROUGH), and set "
        "alluxio.user.file.writetype.default=ASYNC_THROUGH in its settings",
    ),
    (
        r"io exception",
        "a worker has just died, and the proxy still writes to it: try again in a moment, and set "
        "alluxio.user.worker.list.refresh.interval=1sec in the proxies' settings (by default it takes two minutes)",
    ),
    (
        r"Not enough workers|[Nn]o available .*worker|copies in the memory",
        "start more workers, each with a different host name (alluxio.worker.hostname), or set fewer copies with "
        "replication=N in the URL",
    ),
    (
        r"space",
        "the workers' memory is full of data that are not persisted yet: raise alluxio.worker.ramdisk.size, and check that "
        "the job master and a job worker on each worker's machine are running",
    ),
    (
        r"not durable",
        "the job service does not persist data: start a job master, and a job worker on each worker's machine "
        "(`alluxio-start.sh job_masters`, `job_workers`), set alluxio.job.master.hostname to the first, and let them write to "
        "the under-store (alluxio.master.mount.table.root.ufs); if the master's log reports that an owner cannot be set, set "
        "alluxio.underfs.allow.set.owner.failure=true",
    ),
    (
        r"[Pp]ermission|PERMISSION",
        "allow the user that the proxy runs as (alluxio.security.login.username) to write to the folder (`alluxio fs chmod`), "
        "or use a folder that this user owns",
    ),
    (r"lost before", "a worker has died, or its machine is too busy: see the worker's log, and alluxio.master.worker.timeout"),
    (r"not one of Alluxio's", "check that the address is that of an Alluxio 2.9 proxy, and read the proxy's log"),
)


def advise(problem: str) -> str:
    """Return what to do about a problem; "" if nothing is known."""
    return next((words for pattern, words in _ADVICE if re.search(pattern, problem)), "")
