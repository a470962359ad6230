"""Who may read the dashboard, as decisions without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tranlogs.base.errors import UsageError
from tranlogs_monitor.dashboard.access.access_rules import access_on
from tranlogs_monitor.dashboard.access.tokens import ENVIRONMENT_NAME, Token, choose_token

RANDOM, GIVEN = Token("a-random-one"), Token("a-given-one", "--token-file x")
LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.1.1", "::1", "::ffff:127.0.0.1")
OTHERS = ("0.0.0.0", "::", "192.168.1.5", "10.0.0.1", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.1")


@pytest.mark.parametrize("address", LOOPBACK)
@pytest.mark.parametrize(
    ("token", "has_auth", "required"), [(RANDOM, True, None), (RANDOM, False, None), (GIVEN, True, GIVEN), (GIVEN, False, None)]
)
def test_a_loopback_address_checks_the_host_and_requires_a_token_that_was_given(
    address: str, token: Token, has_auth: bool, required: Token | None
) -> None:
    access = access_on(address, token, has_auth=has_auth)
    assert access.hosts is not None
    assert access.token is required


@pytest.mark.parametrize("address", OTHERS)
@pytest.mark.parametrize("token", [RANDOM, GIVEN])
def test_any_other_address_requires_a_token_unless_told_not_to(address: str, token: Token) -> None:
    access = access_on(address, token, has_auth=True)
    assert (access.hosts, access.token) == (None, token)
    access = access_on(address, token, has_auth=False)
    assert (access.hosts, access.token) == (None, None)


@pytest.mark.parametrize(
    "header",
    ["localhost", "localhost:9464", "LocalHost:1", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:9464", "127.0.0.1:"],
)
def test_a_local_host_header_is_allowed_with_any_port(header: str) -> None:
    assert access_on("127.0.0.1", RANDOM, has_auth=True).allows_host(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        ":9464",
        "attacker.example",
        "attacker.example:9464",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example",
        "attacker.example:localhost",
        "localhost:9464:9464",
        "localhost@attacker.example",
        "localhost, attacker.example",
        "localhost.",
        " localhost",
        "[::1]attacker.example",
        "[::1",
        "::1",
        "0.0.0.0:9464",
        "127.0.0.2",
        "localhost:\u0661",
        "localhost\n",
    ],
)
def test_any_other_host_header_is_refused(header: str | None) -> None:
    assert not access_on("127.0.0.1", RANDOM, has_auth=True).allows_host(header)


def test_the_address_that_is_listened_on_may_be_named() -> None:
    assert access_on("127.0.0.2", RANDOM, has_auth=True).allows_host("127.0.0.2:9464")


def test_a_token_comes_from_the_file_else_the_environment_else_chance(tmp_path: Path) -> None:
    file, environment = tmp_path / "token", {ENVIRONMENT_NAME: "of-the-environment"}
    file.write_text("of-the-file\n")
    assert choose_token(file, environment) == Token("of-the-file", f"--token-file {file}")
    assert choose_token(None, environment) == Token("of-the-environment", ENVIRONMENT_NAME)
    made = [choose_token(None, {}) for _ in range(2)]
    assert all(token.is_random and len(token.value) >= 32 for token in made)
    assert made[0].value != made[1].value


@pytest.mark.parametrize("text", ["", " \n", "two words", "two\nlines", "z\u00e4h", "\x00", "\udcff"])
def test_a_token_that_cannot_be_sent_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{ENVIRONMENT_NAME}: "):
        choose_token(None, {ENVIRONMENT_NAME: text})
    (tmp_path / "token").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"^--token-file .*/token: "):
        choose_token(tmp_path / "token", {})


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--token-file .*/missing: cannot be read \(No such file or directory\)"):
        choose_token(tmp_path / "missing", {ENVIRONMENT_NAME: "is-not-used-instead"})


def test_a_cookie_does_not_tell_the_token_and_fits_one_token_only() -> None:
    assert RANDOM.value not in RANDOM.cookie_name + RANDOM.cookie_value + repr(RANDOM)
    assert RANDOM.matches_cookie(RANDOM.cookie_value)
    assert not RANDOM.matches_cookie(GIVEN.cookie_value)
    assert not RANDOM.matches_cookie(RANDOM.value)
    assert not RANDOM.matches_cookie("")
    assert RANDOM.cookie_name != GIVEN.cookie_name
    assert RANDOM.matches("a-random-one")
    assert not any(RANDOM.matches(wrong) for wrong in ("", "a-random-on", "a-random-onee", "\u00e4"))
