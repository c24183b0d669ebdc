"""Many virtual runs: every variant with every seed, one after the other here, or in several processes at once.

tasks   asp/0   asp/1   bsp/0   bsp/1        a run has one thread and knows of no other:
          |       |       |       |          the results do not depend on who makes them
children [0]     [1]     [0]     [1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from heterps import errors
from heterps.config import Job
from heterps.errors import ConfigError
from heterps.processes import Child
from heterps.sim.course import Course, Point, VirtualRun
from heterps.sim.played import why_not_as_job
from heterps.sim.scenario import Scenario
from heterps.sim.simulator import Simulator
from heterps.sim.variants import Variant
from heterps.sim.virtual import train_virtually

POINT_S = 3600.0
"""Seconds of silence after which a process is taken to be lost."""

OnPoint = Callable[[Variant, int, Point], None]
Task = tuple[Variant, Scenario]


def train_all(
    job: Job,
    scenario: Scenario,
    variants: Sequence[Variant],
    *,
    num_seeds: int = 1,
    course: Course = Course(),
    num_processes: int = 1,
    on_point: OnPoint = lambda _variant, _seed, _point: None,
    as_job: bool | None = None,
) -> list[VirtualRun]:
    """Trains each variant with the scenario's seed and those after it; results are in the order of variants and seeds.

    All are played by the same simulator, so that policies are compared: as whole jobs, unless `why_not_as_job` says
    why not. `as_job` decides otherwise.
    `on_point` is told what each run finds while it goes on, from several threads where there are several processes.
    """
    seeds = range(scenario.seed, scenario.seed + num_seeds)
    tasks = [(variant, scenario.model_copy(update={"seed": seed})) for variant in variants for seed in seeds]
    for variant in variants:  # what does not fit is refused before anything is trained
        played, _ = variant.fit(scenario, job.data.batch_size)
        Simulator(played, variant.policy)
    if job.data.test is None:
        raise ConfigError("virtual training is judged on a test set: name one in data.test of the job.")
    why = why_not_as_job(job, scenario, variants)
    as_job = not why if as_job is None else as_job
    if job.on_not_finite != "raise" and not as_job:
        raise ConfigError(
            f"on_not_finite: {job.on_not_finite} is for whole jobs, and here {why}: a loss that is not finite ends "
            "training. Use on_not_finite: raise"
        )
    if min(num_processes, len(tasks)) == 1:
        return [_train_here(job, task, course, on_point, as_job) for task in tasks]
    return _train_in_children(job, tasks, course, min(num_processes, len(tasks)), on_point, as_job)


def _train_here(job: Job, task: Task, course: Course, on_point: OnPoint, as_job: bool) -> VirtualRun:
    variant, scenario = task
    told = lambda point: on_point(variant, scenario.seed, point)  # noqa: E731
    return train_virtually(job, scenario, variant, course, told, as_job=as_job)


def _train_in_children(
    job: Job, tasks: Sequence[Task], course: Course, num: int, on_point: OnPoint, as_job: bool
) -> list[VirtualRun]:
    children: list[Child] = []
    free: SimpleQueue[Child] = SimpleQueue()

    def run(task: Task) -> VirtualRun:
        child = free.get()
        try:
            return _ask(child, task, on_point)
        finally:
            free.put(child)

    try:
        for i in range(num):
            children.append(Child(f"virtual training {i}", "heterps.sim.child"))
            first = {"job": job.model_dump(mode="json"), "course": course.model_dump(mode="json"), "as_job": as_job}
            children[i].send(first)
            free.put(children[i])
        with ThreadPoolExecutor(num, "heterps-virtual") as pool:
            futures = [pool.submit(run, task) for task in tasks]
            try:
                return [future.result() for future in futures]
            except BaseException:  # also Ctrl-C: leave nothing running, and let the threads that wait for it end
                pool.shutdown(wait=False, cancel_futures=True)
                for child in children:
                    child.kill()
                raise
    finally:
        for child in children:
            child.close()


def _ask(child: Child, task: Task, on_point: OnPoint) -> VirtualRun:
    variant, scenario = task
    child.send({"policy": variant.label, "scenario": scenario.model_dump(mode="json")})
    while True:
        answer = child.answer(POINT_S, f"trains {variant.label} with seed {scenario.seed}")
        if "run" in answer:
            return VirtualRun.from_json(answer["run"])
        if "refused" in answer:
            raise getattr(errors, answer["kind"])(answer["refused"])
        on_point(variant, scenario.seed, Point(**answer["point"]))
