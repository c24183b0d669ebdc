"""The key of a job: one CURVE key pair that every process of the job holds, in a file that only its owner can read.

A process that has the file belongs to the job: servers admit no other client key, and clients talk to no other server
key. The secret is never an argument or an environment variable, where other users of a machine could see it.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from heterps.errors import ConfigError, StorageError

FILE = "job.key"
ABOUT = "The key of a heterps job. Everyone who has it can join the job: keep it secret, mode 0600."


@dataclass(frozen=True)
class Keys:
    """A CURVE key pair that authenticates and encrypts; each half is 40 ASCII characters (Z85)."""

    public: str
    secret: str = field(repr=False)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    about: str
    public: str
    secret: str


def make_keys() -> Keys:
    """Create a key pair in memory only."""
    import zmq

    public, secret = (half.decode() for half in zmq.curve_keypair())
    return Keys(public, secret)


def create_keys(folder: str | Path) -> Path:
    """Write a new key pair to `folder`/job.key, mode 0600, and return its path. It never replaces a file."""
    path, keys = Path(folder) / FILE, make_keys()
    text = msgspec.json.format(msgspec.json.encode(_File(ABOUT, keys.public, keys.secret)), indent=1) + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and a running job may depend on it: use another folder, or delete it first"
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}: choose a folder of yours") from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # whatever the umask says
        file.write(text)
    return path


def load_keys(path: str | Path) -> Keys:
    """Read the key pair at `path`, a file or a folder with a job.key; ConfigError if other users can read it."""
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: make a key with `heterps keys create DIR`") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, so other users can read or change it: "
            f"make a new key with `heterps keys create DIR`, or `chmod 600 {path}` if nobody did"
        )
    try:
        file_content = msgspec.json.decode(text, type=_File)
        return check_pair(Keys(file_content.public, file_content.secret))
    except (msgspec.DecodeError, ValueError):
        raise ConfigError(f"{path} is not a key file of heterps: make one with `heterps keys create DIR`") from None


def check_pair(keys: Keys) -> Keys:
    """Return `keys`; raises ValueError unless the two halves belong together."""
    import zmq

    try:
        public = zmq.curve_public(keys.secret.encode("ascii")).decode()
    except zmq.ZMQError:
        raise ValueError("a secret key is 40 characters of Z85") from None
    if public != keys.public:
        raise ValueError("the public key does not belong to the secret key")
    return keys
