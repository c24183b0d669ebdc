"""Coverage-guided fuzzing of what a peer can send to a server or a session: needs the extra `fuzz` (atheris).

    python tests/fuzz/fuzz_server.py -max_total_time=60

Arguments are libFuzzer's. New inputs are let go unless a folder for them is named. One that breaks something is written
as crash-... to the working directory: mend the cause, and move it to tests/fuzz/corpus, which the tests replay.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

import heterps.ps.client.local  # noqa: F401 -- the modules with kernels, as they are: numba cannot compile what atheris adds

with atheris.instrument_imports(include=["heterps"]):
    import fuzz_target
    from fuzz_seeds import seeds

HERE = Path(__file__).parent


def main() -> None:
    arguments = sys.argv
    with tempfile.TemporaryDirectory() as folder:
        if not any(not word.startswith("-") for word in sys.argv[1:]):
            for name, data in seeds().items():
                (Path(folder) / name).write_bytes(data)
            arguments = [*sys.argv, folder, str(HERE / "corpus")]
        atheris.Setup([*arguments, "-rss_limit_mb=2048", "-max_len=4096"], fuzz_target.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
