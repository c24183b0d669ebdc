"""Key files are private, whole, and never replaced; addresses that others can reach need one."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from heterps.errors import ConfigError, StorageError
from heterps.wire.address import check_address, check_folder, is_local
from heterps.wire.keys import Keys, create_keys, load_keys


def test_a_key_is_created_for_its_owner_only_and_loads_again(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = create_keys(tmp_path / "new" / "keys")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_keys(path) == load_keys(path.parent)


def test_two_keys_differ_and_a_secret_is_not_shown(tmp_path: Path) -> None:
    one, two = (load_keys(create_keys(tmp_path / name)) for name in "ab")
    assert one.secret != two.secret
    assert one.secret not in repr(one)
    assert one.public in repr(one)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = create_keys(tmp_path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600"):
        load_keys(path)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    before = create_keys(tmp_path).read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        create_keys(tmp_path)
    assert (tmp_path / "job.key").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StorageError, ConfigError), match="file"):
        create_keys(tmp_path / "file")


@pytest.mark.parametrize("damage", [lambda t: "", lambda t: t[:-60], lambda t: t.replace("public", "pub")])
def test_a_damaged_key_file_is_refused(tmp_path: Path, damage: object) -> None:
    path = create_keys(tmp_path)
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(ConfigError, match="is not a key file"):
        load_keys(path)


def test_halves_of_two_keys_are_refused(tmp_path: Path) -> None:
    one, two = create_keys(tmp_path / "a"), create_keys(tmp_path / "b")
    one.write_text(one.read_text().replace(load_keys(one).public, load_keys(two).public))
    with pytest.raises(ConfigError, match="is not a key file"):
        load_keys(one)


def test_a_missing_key_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="heterps keys create"):
        load_keys(tmp_path / "none")


IPC = ["ipc:///tmp/s", "ipc://./s"]
LOOPBACK = ["tcp://127.0.0.1:5555", "tcp://127.0.0.9:*", "tcp://localhost:1", "tcp://[::1]:9"]
BEYOND = ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.1:1", "tcp://[::]:5", "tcp://host:80", "tcp://eth0:7"]


@pytest.mark.parametrize("address", IPC)
def test_sockets_in_the_file_system_need_no_key(address: str) -> None:
    assert check_address(address) == address
    assert is_local(address)


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_is_refused_without_a_key_because_every_user_reaches_it(address: str) -> None:
    with pytest.raises(ConfigError, match=r"by every user of this machine, and no key.*heterps keys create"):
        check_address(address)
    assert check_address(address, Keys("p", "s")) == check_address(address, open_loopback=True) == address
    assert is_local(address)


@pytest.mark.parametrize("address", BEYOND)
def test_addresses_beyond_loopback_are_refused_without_a_key(address: str) -> None:
    for open_loopback in (False, True):
        with pytest.raises(ConfigError, match=r"from other machines, and no key protects it.*heterps keys create"):
            check_address(address, open_loopback=open_loopback)
    assert check_address(address, Keys("p", "s")) == address
    assert not is_local(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:5",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "udp://1:1",
        "ipc://",
        "ipc://x",
        "ipc:///" + "x" * 120,
    ],
)
def test_what_is_no_address_is_refused_with_the_form(address: str) -> None:
    with pytest.raises(ConfigError, match="ipc://PATH"):
        check_address(address, Keys("p", "s"))


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [("ipc:///" + "x" * 106, "ipc:///" + "x" * 107), ("tcp://127.0.0.1:65535", "tcp://127.0.0.1:65536")],
)
def test_a_path_and_a_port_may_be_as_long_as_the_system_takes_and_no_longer(longest: str, too_long: str) -> None:
    assert check_address(longest, Keys("p", "s")) == longest
    with pytest.raises(ConfigError, match="ipc://PATH"):
        check_address(too_long, Keys("p", "s"))


@pytest.mark.parametrize(("owner", "is_safe"), [(0, True), (os.geteuid(), True), (os.geteuid() + 1, False)])
def test_a_folder_of_another_user_needs_a_key(monkeypatch: pytest.MonkeyPatch, owner: int, is_safe: bool) -> None:
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_uid=owner, st_mode=0o40700))
    with nullcontext() if is_safe else pytest.raises(ConfigError, match="other users can write to /folder"):
        check_folder("ipc:///folder/s", None)
    check_folder("ipc:///folder/s", Keys("p", "s"))


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_in_which_others_can_write_needs_a_key(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=r"other users can write to .*open, and no key.*mkdir -m 700 DIR"):
        check_folder(f"ipc://{folder}/s", None)
    check_folder(f"ipc://{folder}/s", Keys("p", "s"))
    folder.chmod(0o755)
    check_folder(f"ipc://{folder}/s", None)
    check_folder(f"ipc://{folder}/none/s", None)
