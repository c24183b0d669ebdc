"""Control: where commands find a running job, and how they speak to it.

    heterps scale RUN                                       the process of `heterps train`
      [1] RUN/control.json: address, process                  writes it, and removes it at its end
      [2] connects: ipc, in a folder of this user alone  -->  a thread of its own receives
      [3] Scale, Replan, AskStatus                       -->    [queue] --> the loop of the job takes it when it can
      [4] prints                                         <--  CommandReply

A job has one, whatever runs it and however its workers speak. A file whose process is gone, because nobody could remove
it, says so: at its address nobody listens.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from heterps.errors import PeerLost, RunError, StorageError
from heterps.temporary import PREFIX
from heterps.training.run.commands import CommandReply, ToJob, command_codec
from heterps.wire import ClientChannel, ServerChannel, WireError
from heterps.wire.address import is_served, socket_folder

FILE = "control.json"
POLL_S = 0.2
"""How soon the thread that receives notices that the job is over."""
ANSWER_S = 60.0
"""A job answers between two messages of its workers; a checkpoint, or the start of another plan, may take a while."""
CONNECT_S = 10.0


@dataclass(frozen=True)
class Request:
    """What somebody wants of the job. It is answered once."""

    message: ToJob
    answer: Callable[[CommandReply], None]


class NotRunning(RunError):
    """No job runs in this run folder (any more)."""


class Control:
    """The job's end, while the `with` block lasts. `folder` is the run's; RunError where its job runs already."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._codec = command_codec()
        self._ended = threading.Event()
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        refuse_if_running(self._folder)
        with ExitStack() as opened:
            place = opened.enter_context(socket_folder())
            channel = ServerChannel("job", f"ipc://{place}/control")
            opened.callback(channel.close)
            thread = threading.Thread(target=self._receive, args=(channel,), name="control", daemon=True)
            thread.start()
            opened.callback(thread.join)
            opened.callback(self._ended.set)
            _write(self._folder / FILE, channel.address)  # [1]
            opened.callback((self._folder / FILE).unlink, missing_ok=True)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for request in self.requests():
            request.answer(CommandReply("the job has just ended", is_error=True))
        self._opened.close()

    def requests(self) -> Iterator[Request]:
        """Yield the requests that have come and were not taken yet, without waiting."""
        with suppress(queue.Empty):
            while True:
                yield self._queue.get_nowait()

    def put(self, message: ToJob, answer: Callable[[CommandReply], None]) -> None:
        """Add a request from within this process."""
        self._queue.put(Request(message, answer))

    def _receive(self, channel: ServerChannel) -> None:  # [3]
        while not self._ended.is_set():
            with suppress(WireError):  # who sends nonsense waits in vain
                if (received := channel.receive(POLL_S)) is not None:
                    sender, parts = received
                    message, _ = self._codec.decode(parts)
                    if isinstance(message, ToJob):
                        self.put(message, self._answerer(channel, sender))

    def _answerer(self, channel: ServerChannel, sender: str) -> Callable[[CommandReply], None]:
        def answer(told: CommandReply) -> None:
            with suppress(PeerLost):  # it did not wait for the answer
                channel.send(sender, self._codec.encode(told, []), 0.0)  # [4]

        return answer


@dataclass(frozen=True)
class Found:
    """A job that runs. `directory` is where its relative paths begin."""

    folder: Path
    address: str
    pid: int
    directory: Path

    def ask(self, question: ToJob, deadline_s: float = ANSWER_S) -> CommandReply:
        """[2] to [4]. PeerLost where the job does not answer in time."""
        name = f"command-{os.getpid()}-{secrets.token_hex(3)}"
        channel, codec = ClientChannel(name, {"job": self.address}), command_codec()
        try:
            channel.wait_connected("job", CONNECT_S)
            channel.send("job", codec.encode(question, []))
            until = time.monotonic() + deadline_s
            while (left_s := until - time.monotonic()) > 0:
                if (received := channel.receive(min(left_s, POLL_S))) is not None:
                    message, _ = codec.decode(received[1])
                    if isinstance(message, CommandReply):
                        return message
                elif not channel.is_connected("job"):
                    raise PeerLost(f"{self.folder}: its job (process {self.pid}) ended before it answered")
        finally:
            channel.close()
        raise PeerLost(
            f"{self.folder}: its job (process {self.pid}) did not answer within {deadline_s:g} s. It does between two "
            "steps: is it still starting, stopped, or busy with a checkpoint? Ask again"
        )


def find(folder: Path) -> Found:
    """The job that runs in a run folder; RunError where there is none, or none that may be spoken to from here."""
    if not (folder / "job.yaml").is_file():
        raise RunError(f"{folder} is not a run: there is no job.yaml in it. Name a folder that `heterps train` made.")
    path = folder / FILE
    try:
        owner = path.stat().st_uid
        told: Any = json.loads(path.read_text(encoding="utf-8"))
        host, found = str(told["host"]), Found(folder, told["address"], int(told["pid"]), Path(told["directory"]))
    except FileNotFoundError:
        raise NotRunning(_not_running(folder)) from None
    except PermissionError:
        raise RunError(f"{folder} is run by another user, and only that user may speak to its job.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(
            f"{path} is damaged, so its job cannot be found: delete the file when the job is over."
        ) from None
    if owner != os.geteuid():
        raise RunError(f"{folder} is run by another user (number {owner}), and only that user may speak to its job.")
    if host != socket.gethostname():
        raise RunError(f"{folder} runs on {host}: give the command there. (If it is over, delete {path}.)")
    if not is_served(found.address):
        raise NotRunning(
            f"{folder} is not running: its process {found.pid} has ended without a word. {_remedy(folder)}"
        )
    return found


def refuse_if_running(folder: Path) -> None:
    """RunError where a job runs in this run folder, here or, as far as its file tells, elsewhere."""
    if not (folder / FILE).exists():
        return
    try:
        found = find(folder)
    except NotRunning:
        (folder / FILE).unlink(missing_ok=True)  # of a process that was killed
        return
    raise RunError(
        f"{folder} is running already (process {found.pid}): watch it with `heterps status {folder}`, stop it first, "
        "or start a new run with --run"
    )


def ask(folder: Path, question: ToJob, deadline_s: float = ANSWER_S) -> CommandReply:
    """Ask the job that runs in a run folder one question."""
    return find(folder).ask(question, deadline_s)


def clear(folder: Path, process: int) -> None:
    """Remove what the process of a run's job left, because it was killed; of another process, nothing."""
    with suppress(OSError, ValueError, KeyError):
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if found["pid"] == process:
            (folder / FILE).unlink()
            place = Path(found["address"].removeprefix("ipc://")).parent
            if place.name.startswith(PREFIX):
                shutil.rmtree(place, ignore_errors=True)


def _write(path: Path, address: str) -> None:
    """Write a file that only this user can read; it appears whole or not at all."""
    told = {"address": address, "pid": os.getpid(), "host": socket.gethostname(), "directory": str(Path.cwd())}
    draft = path.with_name(f".{path.name}.part")
    try:
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(told, indent=1) + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written: {error.strerror}. Check the folder and its permissions."
        ) from None


def _not_running(folder: Path) -> str:
    """Return the error for a run without a job; its summary says whether it is done or was stopped."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        status = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["status"]
        if status in ("completed", "stopped early", "diverged"):
            return f"{folder} is not running: it has completed. `heterps report {folder}` shows how it went."
    return f"{folder} is not running. {_remedy(folder)}"


def _remedy(folder: Path) -> str:
    return f"Go on with it by `heterps train {folder / 'job.yaml'} --run {folder} --resume`."
