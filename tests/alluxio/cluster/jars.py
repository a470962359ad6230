"""The JDK, and Alluxio's jars in the user's cache: resolved by Maven once, whichever process asks first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_MIN, JAVA_MAX = 11, 23  # from 24 on Alluxio's copy of ForkJoinPool reads a field that Thread no longer has


class Missing(Exception):
    """What a cluster needs is not on this machine; the message says what, and how to get it."""


def java() -> str:
    """The command of a JDK that can run Alluxio."""
    home = os.environ.get("JAVA_HOME")
    known = sorted(str(path) for path in Path("/usr/lib/jvm").glob("*17*/bin/java"))
    for command in [*([f"{home}/bin/java"] if home else []), *known, shutil.which("java")]:
        if command is None or not os.access(command, os.X_OK):
            continue
        told = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
        found = re.search(r'version "(\d+)', told)
        if found and JAVA_MIN <= int(found[1]) <= JAVA_MAX:
            return command
    raise Missing(f"no JDK {JAVA_MIN} to {JAVA_MAX} was found: install openjdk-17-jdk-headless")


def class_path() -> str:
    """All jars, for `java -cp`. The first call on a machine downloads some 210 MB.

    Raises:
        Missing: there is no Maven, or it could not resolve them.
    """
    text = pom()
    folder = _cache() / f"alluxio-{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the process dies, too
        if not folder.is_dir():
            _resolve(text, folder)
    return ":".join(str(path) for path in sorted(folder.glob("*.jar")))


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tranlogs"


def _resolve(text: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("no Maven was found: install maven")
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    (unfinished / "pom.xml").write_text(text)
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(unfinished / "pom.xml"),
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={unfinished}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise Missing(f"Maven could not resolve Alluxio's jars:\n{(done.stdout + done.stderr)[-4000:]}")
    unfinished.rename(folder)  # commit point


# The Maven project whose dependencies are the class path of every Alluxio process. Nothing is compiled.
#
# Alluxio's own parent comes first as a bill of materials, so that third-party versions are those it was built with; the others
# align modules that it does not manage. A pom cannot say "exclude everywhere", so it is made from the lists below.


VERSION = "2.9.6"


# Modules whose dependencies together are the five roles. The local under-store is found by being on the path.
_MODULES = (
    "core-server-master",
    "core-server-worker",
    "core-server-proxy",
    "core-server-common",
    "job-server",
    "underfs-local",
)


_BILLS = (
    ("org.alluxio", "alluxio-parent", VERSION),
    ("io.grpc", "grpc-bom", "1.54.1"),
    ("io.netty", "netty-bom", "4.1.87.Final"),
    ("org.eclipse.jetty", "jetty-bom", "9.4.46.v20220331"),
    ("org.glassfish.jersey", "jersey-bom", "2.34"),
    ("com.fasterxml.jackson", "jackson-bom", "2.13.5"),  # from 2.14 on it lacks classes that jackson-datatype-protobuf uses
)


_EXCLUDED = (
    # Bindings that fight slf4j-reload4j for the log.
    ("log4j", "log4j"),
    ("org.slf4j", "slf4j-log4j12"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl"),
    ("org.apache.logging.log4j", "log4j-1.2-api"),
    ("ch.qos.logback", "*"),
    # Hadoop's Jersey 1 and its servlets break Jersey 2.
    ("com.sun.jersey", "*"),
    ("com.sun.jersey.contribs", "*"),
    ("javax.ws.rs", "jsr311-api"),
    ("javax.servlet", "servlet-api"),
    ("javax.servlet.jsp", "jsp-api"),
    # For mounts and optional codecs only, or not on Central.
    ("com.github.serceman", "jnr-fuse"),
    ("com.github.jnr", "*"),
    ("com.github.rdblue", "brotli-codec"),
    ("jdk.tools", "jdk.tools"),
    ("junit", "junit"),
)


_EXTRA = """
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId><version>1.7.34</version></dependency>
    <!-- 'provided' in the poms of master and worker -->
    <dependency>
      <groupId>org.glassfish.jersey.media</groupId><artifactId>jersey-media-json-jackson</artifactId>
    </dependency>"""


def pom() -> str:
    """The text of pom.xml."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tranlogs</groupId>
  <artifactId>alluxio-cluster</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement><dependencies>{"".join(_bill(*bill) for bill in _BILLS)}
  </dependencies></dependencyManagement>
  <dependencies>{"".join(_module(name) for name in _MODULES)}{_EXTRA}
  </dependencies>
  <build><pluginManagement><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId><version>3.6.1</version>
  </plugin></plugins></pluginManagement></build>
</project>
"""


def _bill(group: str, artifact: str, version: str) -> str:
    return f"""
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <type>pom</type><scope>import</scope>
    </dependency>"""


def _module(name: str) -> str:
    excluded = "".join(
        f"\n        <exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in _EXCLUDED
    )
    return f"""
    <dependency>
      <groupId>org.alluxio</groupId><artifactId>alluxio-{name}</artifactId><version>{VERSION}</version>
      <exclusions>{excluded}
      </exclusions>
    </dependency>"""
