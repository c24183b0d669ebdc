"""A server listens where it may: on loopback, or beyond it with a token that nobody else can read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from heterps.errors import ConfigError
from heterps.serving.listen import TOKEN_VARIABLE, listening, read_token, url_of

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_token(None) is None
    assert read_token(token_file(tmp_path, f"{TOKEN}\n")) == TOKEN
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN * 2)
    assert read_token(None) == TOKEN * 2
    assert read_token(tmp_path / "token") == TOKEN


@pytest.mark.parametrize("text", ["", "short", "with a space in it, and long", "long enough but with ü", "0\x001" * 9])
def test_a_token_that_is_easy_to_guess_or_cannot_be_sent_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="at least 16 letters"):
        read_token(token_file(tmp_path, text))


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mode 0644.*chmod 600"):
        read_token(token_file(tmp_path, TOKEN, 0o644))
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_needs_no_token(host: str) -> None:
    with listening(host, 0, None) as opened:
        assert opened.getsockname()[1] > 0
        assert url_of(opened).startswith("http://127.0.0.")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="--token-file"):
        listening(host, 0, None)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127.0.0.1 port {port}: .*in use.*another port"):
            listening("127.0.0.1", port, None)


def test_a_host_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--host no-such-host\.invalid"):
        listening("no-such-host.invalid", 0, TOKEN)
