"""A process that trains virtually: `python -m heterps.sim.child`, started by `heterps.sim.runs`.

{"job": ..., "course": ..., "as_job": ...}  first; no answer
{"scenario": ..., "policy": "asp+damped"}   --> {"point": ...} for each, then {"run": ...}
a job that cannot be trained                --> {"refused": text, "kind": "DataError"}
anything else that fails                    --> {"error": text}
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from heterps.config import Job
from heterps.errors import HeterpsError
from heterps.processes import give_answer, reserve_stdout
from heterps.sim.course import Course
from heterps.sim.scenario import Scenario
from heterps.sim.variants import parse_variant
from heterps.sim.virtual import train_virtually


def main() -> None:
    commands, answers = sys.stdin, reserve_stdout()
    try:
        first = json.loads(commands.readline())
        job, course = Job.model_validate(first["job"]), Course.model_validate(first["course"])
        for line in commands:
            asked = json.loads(line)
            run = train_virtually(
                job,
                Scenario.model_validate(asked["scenario"]),
                parse_variant(asked["policy"]),
                course,
                lambda point: give_answer(answers, {"point": asdict(point)}),
                as_job=first["as_job"],
            )
            give_answer(answers, {"run": run.as_json()})
    except HeterpsError as error:
        give_answer(answers, {"refused": str(error), "kind": type(error).__name__})
    except Exception as error:  # the model's own code, memory that is not there: told to the process that waits
        give_answer(answers, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
