"""What to do about what an Alluxio cluster says, or does not do: for people, by the words of the problem."""

from __future__ import annotations

import re

_ADVICE = (
    (r"alluxio\.proxy\.s3\.v2", ""),  # says it itself
    (
        r"speaks no HTTP",
        "give the port of the proxy (alluxio.proxy.web.port, by default 39999), and not a master's or worker's",
    ),
    (r"name is not known", "correct the host's name"),
    (
        r"refused|Max retries|timed out|Name or service|unreachable|reset by peer",
        "start the proxy (`alluxio-start.sh proxy`), or correct host and port (alluxio.proxy.web.port, by default 39999)",
    ),
    (
        r"connect to master",
        "start the master (`alluxio-start.sh master`), and let alluxio.master.hostname in the proxy's settings name it",
    ),
    (
        r"\b0 of \d+ copies",
        "what is written goes past the workers' memory: raise alluxio.worker.ramdisk.size, and leave "
        "alluxio.user.file.ufs.tier.enabled=false in the proxies' settings",
    ),
    (
        r"write type is not honoured",
        "let the address be that of an Alluxio 2.9 proxy (Alluxio 3 has no ASYNC_THROUGH), and set "
        "alluxio.user.file.writetype.default=ASYNC_THROUGH in its settings",
    ),
    (
        r"io exception",
        "a worker has just died, and the proxy still writes to it: try again in a moment, and set "
        "alluxio.user.worker.list.refresh.interval=1sec in the proxies' settings (by default it takes two minutes)",
    ),
    (
        r"Not enough workers|[Nn]o available .*worker|copies in the memory",
        "start more workers, each under a host name of its own (alluxio.worker.hostname), or ask for fewer copies with "
        "replication=N in the URL",
    ),
    (
        r"space",
        "the workers' memory is full of what is not persisted yet: raise alluxio.worker.ramdisk.size, and see that the job "
        "master and a job worker beside each worker run",
    ),
    (
        r"not durable",
        "the job service does not persist: start a job master and a job worker beside each worker (`alluxio-start.sh "
        "job_masters`, `job_workers`), let alluxio.job.master.hostname name the first, and let them write to the under-store "
        "(alluxio.master.mount.table.root.ufs); if the master's log says that an owner cannot be set, set "
        "alluxio.underfs.allow.set.owner.failure=true",
    ),
    (
        r"[Pp]ermission|PERMISSION",
        "let the user that the proxy runs as (alluxio.security.login.username) write there: `alluxio fs chmod`, or a folder of "
        "its own",
    ),
    (r"lost before", "a worker died, or lives on a machine that is too busy: see its log, and alluxio.master.worker.timeout"),
    (r"none of Alluxio's", "see that the address is that of an Alluxio 2.9 proxy, and look at the proxy's log"),
)


def advice(problem: str) -> str:
    """What to do; nothing if nothing is known."""
    return next((words for pattern, words in _ADVICE if re.search(pattern, problem)), "")
