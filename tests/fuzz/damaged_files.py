"""Files that are damaged in every way, given to the real commands: an error in words, and nothing worse.

    python tests/fuzz/damaged_files.py TARGET COUNT [FIRST]

gives COUNT damaged inputs to a target of `TARGETS`, each made from its number alone, so that FIRST repeats one. It is
a process of its own, so that a crash, a hang or too much memory shows; the last line that it prints names the input.
Nothing is left in the folder that it works in, which is a temporary one.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow.parquet as pq
import xxhash
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import JOB, write_tiny

from heterps.checkpoint import manifest, saved_samples
from heterps.cli import main
from heterps.errors import HeterpsError

LONGEST_S = 60
MORE_BYTES = 1 << 30
"""The process may not grow by more than this."""
GOOD_CODES = range(2, 9)
Dice = random.Random


def command(*words: object) -> int:
    """Exit code of a command. What it says is an error in words if it fails; any other exception passes."""
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            main([str(word) for word in words])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 0 or code in GOOD_CODES, (code, said.getvalue())
    assert (code == 0) == ("error: " not in said.getvalue()), (code, said.getvalue())
    assert "Traceback" not in said.getvalue(), said.getvalue()
    return code


# --- damage ----------------------------------------------------------------------------------------------------------


def damage(content: bytes, dice: Dice) -> bytes:
    """Flip bits, cut, grow, or put bytes of one place to another."""
    made = bytearray(content)
    at = dice.randrange(len(made) + 1)
    match dice.randrange(6):
        case 0 | 1:
            for _ in range(dice.choice([1, 1, 2, 20])):
                made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
        case 2:
            del made[at:]
        case 3:
            del made[at : at + dice.randrange(1, 200)]
        case 4:
            made[at:at] = dice.randbytes(dice.randrange(1, 200))
        case 5:
            source, size = dice.randrange(len(made)), dice.randrange(1, 200)
            made[at : at + size] = made[source : source + size]
    return bytes(made)


def damaged_file(path: Path, dice: Dice) -> None:
    path.write_bytes(damage(path.read_bytes(), dice))


# --- targets ---------------------------------------------------------------------------------------------------------

WORDS = [
    "",
    "~",
    "-1",
    "0",
    "1e309",
    ".nan",
    "[]",
    "{}",
    "[[[[",
    "*a",
    "&a [*a]",
    "!!python/name:os.system",
    "'\\0'",
    "9" * 400,
]
WORDS += [
    "\t",
    "null",
    "true",
    "2026-01-01",
    "0x1f",
    "- ",
    "? a",
    "<<: *a",
    "|",
    "%TAG ! a",
    "---",
    "\ufeff",
    "\u2028",
    "x" * 9000,
]


def job_file(dice: Dice) -> None:
    """A job whose text, or one of whose values, is another."""
    text = Path("job.yaml").read_text()
    if dice.random() < 0.4:
        Path("bad.yaml").write_bytes(damage(text.encode(), dice))
    else:
        places = [at for at, letter in enumerate(text) if letter in " :,[]{}\n"]
        first, last = sorted(dice.sample(places, 2)) if dice.random() < 0.2 else (at := dice.choice(places), at + 1)
        Path("bad.yaml").write_text(text[:first] + dice.choice(WORDS) + dice.choice(["", " ", "\n"]) + text[last:])
    command("config", "show", "bad.yaml")


def data_file(dice: Dice) -> None:
    """Parquet, some with checksums of pages and some without, is described and trained on."""
    shutil.copy(dice.choice(["plain.parquet", "checked.parquet"]), "train.parquet")
    damaged_file(Path("train.parquet"), dice)
    if dice.random() < 0.5:
        command("data", "describe", "train.parquet")
    else:
        shutil.rmtree("runs", ignore_errors=True)
        command("train", "job.yaml", "--run", "runs/one")


def checkpoint_file(dice: Dice) -> None:
    """One file of a checkpoint, or two of them changed for each other: the one before takes its place, or none."""
    newest = _fresh_run()
    path = dice.choice([path for path in sorted(newest.rglob("*")) if path.is_file()])
    before = path.read_bytes()
    if dice.random() < 0.2:
        other = dice.choice(
            [other for other in sorted(Path("run/checkpoints").rglob(f"*{path.suffix}")) if other.is_file()]
        )
        content, other_content = before, other.read_bytes()
        path.write_bytes(other_content)
        other.write_bytes(content)
    else:
        damaged_file(path, dice)
    _resumed()


def forged_file(dice: Dice) -> None:
    """As above, with a manifest that agrees with what was damaged, so that whoever reads the file has to notice."""
    newest = _fresh_run()
    manifests = newest / "manifest.json"
    body = json.loads(manifests.read_text())
    entries = [body["dense"], body["progress"], *(entry for table in body["tables"].values() for entry in table)]
    entry = dice.choice(entries)
    damaged_file(newest / entry["path"], dice)
    content = (newest / entry["path"]).read_bytes()
    entry |= {"num_bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
    if dice.random() < 0.3:
        name = dice.choice(sorted(set(body) - {"xxh3", "version"}))
        body[name] = dice.choice([None, -1, [], {}, "x", 2**80, 0.5, body["dense"]])
    body.pop("xxh3")
    manifests.write_text(json.dumps({**body, "xxh3": manifest._digest(body)}))
    _resumed()


def _fresh_run() -> Path:
    """The newest checkpoint of a copy of a run that has ended."""
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree("good", "run")
    return max(Path("run/checkpoints").iterdir())


def _resumed() -> None:
    if command("train", "longer.yaml", "--run", "run", "--resume") == 0:
        assert saved_samples(Path("run/checkpoints")) == 600


def setup() -> None:
    """What the targets damage, in the working directory."""
    write_tiny(Path("plain.parquet"), 200)
    pq.write_table(pq.read_table("plain.parquet"), "checked.parquet", row_group_size=50, write_page_checksum=True)
    write_tiny(Path("test.parquet"), 60)
    shutil.copy("plain.parquet", "train.parquet")
    job = yaml.safe_load(JOB) | {"checkpoint": {"every_samples": 64, "keep": 3}}
    Path("job.yaml").write_text(yaml.safe_dump(job, default_flow_style=None))
    job["data"]["epochs"] = 3
    Path("longer.yaml").write_text(yaml.safe_dump(job))
    assert command("train", "job.yaml", "--run", "good") == 0


TARGETS: dict[str, Callable[[Dice], None]] = {
    "job": job_file, "data": data_file, "checkpoint": checkpoint_file, "forged": forged_file,
}  # fmt: skip


def run(target: str, count: int, first: int = 0) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        setup()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(first, first + count):
            sys.stdout.write(f"{target} {number}\n")
            sys.stdout.flush()
            faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            try:
                TARGETS[target](Dice(f"{target} {number}"))
            except HeterpsError:
                raise AssertionError("a command shows its errors") from None
            faulthandler.cancel_dump_traceback_later()
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            assert grown < MORE_BYTES, f"it took {grown:,} bytes"
        os.chdir("/")


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:]))
