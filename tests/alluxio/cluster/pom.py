"""The Maven project whose dependencies are the class path of every Alluxio process. Nothing is compiled.

Alluxio's own parent comes first as a bill of materials, so that third-party versions are those it was built with; the others
align modules that it does not manage. A pom cannot say "exclude everywhere", so it is made from the lists below.
"""

from __future__ import annotations

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
