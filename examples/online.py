"""Learn from files as they come: python examples/online.py [FOLDER] [RUN] [--wait SECONDS]

Each file of the folder, in the order of their names, is

    1. scored by the model as it is: how good was it on what came next?  --> a line of RUN.jsonl
    2. trained on, once, by the same run: clock, optimizers and tables go on

Stop it or kill it, and start it again: it goes on at the row after its last checkpoint, and no file is left out or
trained on twice. Write files under another name first, such as `.part`, and rename them when they are whole.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import heterps
from heterps.data.generate import generate

JOB = heterps.load_job(Path(__file__).with_suffix(".yaml"))


def score(run: Path, file: Path) -> dict[str, float]:
    """How good the model of the run is on a file that it has not seen."""
    with heterps.load(run) as model:
        table = model.predict_table(file, columns=["label"])
    label, p = table["label"].to_numpy(), np.clip(table["score"].to_numpy(), 1e-7, 1 - 1e-7)
    log_loss = -np.mean(np.where(label > 0, np.log(p), np.log(1 - p)))
    return {"log_loss": float(log_loss), "predicted": float(p.mean()), "happened": float(label.mean())}


def learn(run: Path, file: Path) -> None:
    """Train on a file: from its first row, or from where a checkpoint within it says."""
    job = JOB.model_copy(update={"data": JOB.data.model_copy(update={"train": str(file)})})
    done = heterps.train(job, run, resume=run.exists())
    if done.summary["status"] != "completed":
        raise SystemExit(f"{file.name}: {done.summary['status']}. Start me again to go on.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("data/stream"))
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/online"))
    parser.add_argument("--wait", type=float, default=0.0, help="look for new files every so many seconds, for ever")
    asked = parser.parse_args()
    if not asked.folder.exists():
        generate(asked.folder.with_name("clicks"), 500_000, 1000)  # four files that stand for four hours
        (asked.folder.with_name("clicks") / "train").rename(asked.folder)

    journal = asked.run.with_name(asked.run.name + ".jsonl")
    begun = [json.loads(line)["file"] for line in journal.read_text().splitlines()] if journal.exists() else []
    if begun:
        learn(asked.run, asked.folder / begun[-1])  # its rest, if there is one
    while True:
        for file in sorted(asked.folder.glob("*.parquet")):
            if file.name not in begun:
                line = {"file": file.name, **(score(asked.run, file) if begun else {})}
                journal.parent.mkdir(parents=True, exist_ok=True)
                with journal.open("a") as lines:
                    lines.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
                begun.append(file.name)
                learn(asked.run, file)
        if not asked.wait:
            break
        time.sleep(asked.wait)


if __name__ == "__main__":
    main()
