"""What is asked: which network, on which workers, with which decay of the learning rate, under which policies.

Seconds are simulated. One is what the faster kind of worker computes an iteration of the residual network in; all else
follows from it and from two rates:

    compute_s   floating-point operations of an iteration (forward and backward), over those of the residual network
    latency_s   bytes of the parameters / BYTES_PER_S, one way: down with the go-ahead, up with the push
    server_s    bytes of the parameters / SERVER_BYTES_PER_S, for each push; others queue meanwhile
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from heterps.config import SGD, Data, Job, Model, Optimizers, Schema, StepRate
from heterps.data.batch import Batch
from heterps.data.reader import Reader
from heterps.model import build_model
from heterps.sim import Scenario
from heterps.sim.scenario import ENDLESS

BATCHES = {"digits": 23, "cifar10": 100}
"""They divide the training sets: a smaller last batch of an epoch would be a whole update where nobody waits."""
JITTER = 0.1
RATIO = 2.5
"""A GTX 1060 against a GTX 1080 Ti: 192 and 484 GB/s of memory are 2.5, 4.4 and 11.3 TFLOP/s are 2.6."""
SHARE = 0.5
"""What a one-way trip of the parameters of alexnet takes of its compute: that fixes the rate of the network."""
SERVER_SPEED = 4.0
"""How many times faster than the network a server takes parameters in."""
FACTOR, DROP_AT = 0.1, 2 / 3
"""The learning rate falls to this part after that part of the run: the paper's first drop is at 200 of 300 epochs."""

PAPERS_RULES = "dssp:3:12+fastest+lower"
PAPER = ("bsp", "asp", "ssp:3", "ssp:6", "ssp:15", PAPERS_RULES, "dssp:3:12+literal")
PASSING = ("bsp", "asp", "ssp:3", "ssp:15", PAPERS_RULES, "dssp:3:12")
BEYOND = ("bsp+summed", "asp+damped", "asp+compensated:0.04", f"{PAPERS_RULES}+compensated:0.04")


@dataclass(frozen=True)
class Network:
    factory: str
    args: dict[str, Any]
    lr: float
    epochs: int
    targets: tuple[float, float]  # accuracies on the test set


@dataclass(frozen=True)
class Question:
    title: str
    network: Network
    speeds: tuple[float, ...]  # of each worker, as times the seconds of the faster kind
    unit: str  # what the learning rate falls by: samples or updates
    policies: tuple[str, ...]
    slow_in_turn: bool = False  # one worker after the other is four times slower for 30 of every 100 iterations


ALEXNET = Network("alexnet", {"width": 16, "hidden": 2048}, lr=0.01, epochs=20, targets=(0.90, 0.93))
RESNET = Network("resnet", {"depth": 8, "width": 8}, lr=1.0, epochs=10, targets=(0.97, 0.98))
FOUR, TWO = (1.0,) * 4, (1.0, RATIO)
QUESTIONS = (
    Question(
        "resnet, 1080 Ti + 1060, decay by samples", RESNET, TWO, "samples", (*PAPER, "dssp:3:12", *BEYOND, "bsp+fitted")
    ),
    Question("resnet, 1080 Ti + 1060, decay by updates", RESNET, TWO, "updates", PAPER),
    Question("resnet, 4 equal workers, decay by samples", RESNET, FOUR, "samples", (*PAPER, *BEYOND, "bsp+backup:1")),
    Question("resnet, 4 equal workers, decay by updates", RESNET, FOUR, "updates", PAPER),
    Question("resnet, 4 workers slow in turn, decay by samples", RESNET, FOUR, "samples", PASSING, slow_in_turn=True),
    Question("alexnet, 4 equal workers, decay by samples", ALEXNET, FOUR, "samples", (*PAPER, *BEYOND, "bsp+backup:1")),
)


@dataclass(frozen=True)
class Costs:
    """Of an iteration of a network."""

    flops: float
    num_bytes: int

    @classmethod
    def of(cls, network: Network, columns: Schema, batch: Batch) -> Costs:
        model = build_model(Model(factory=network.factory, args=network.args), columns)
        with FlopCounterMode(display=False) as counter:
            model(torch.from_numpy(batch.dense), batch.slots).sum().backward()
        return cls(float(counter.get_total_flops()), 4 * sum(parameter.numel() for parameter in model.parameters()))


@dataclass(frozen=True)
class Clock:
    """What an iteration takes on the faster kind of worker."""

    compute_s: float
    latency_s: float
    server_s: float


def make_clocks(train: str, columns: Schema, batch_size: int) -> dict[str, Clock]:
    """The clock of each network, by its factory."""
    batch, _ = next(Reader(train, columns, batch_size=batch_size, shuffle=False).read())
    costs = {network.factory: Costs.of(network, columns, batch) for network in (RESNET, ALEXNET)}
    seconds = {name: cost.flops / costs["resnet"].flops for name, cost in costs.items()}
    bytes_per_s = costs["alexnet"].num_bytes / (SHARE * seconds["alexnet"])
    return {
        name: Clock(seconds[name], cost.num_bytes / bytes_per_s, cost.num_bytes / (SERVER_SPEED * bytes_per_s))
        for name, cost in costs.items()
    }


def make_job(question: Question, data: Data, num_rows: int, epochs: int) -> Job:
    """By updates the rate falls where BSP has seen as many samples as by samples; asynchronous policies are there after
    that number divided by the workers'."""
    samples = int(num_rows * epochs * DROP_AT)
    every = samples if question.unit == "samples" else max(samples // (data.batch_size * len(question.speeds)), 1)
    network = question.network
    return Job(
        name=question.title,
        model=Model(factory=network.factory, args=network.args),
        data=data.model_copy(update={"epochs": epochs}),
        optimizers=Optimizers(
            dense=SGD(lr=network.lr),
            schedule=StepRate.model_validate({"every": every, "factor": FACTOR, "unit": question.unit}),
        ),
    )


def as_in_paper(job: Job, scenario: Scenario) -> tuple[Job, Scenario]:
    """The job of a policy with rounds as the paper has it: a round is a batch of the job's size for every worker."""
    num = len(scenario.workers)
    data = job.data.model_copy(update={"batch_size": num * job.data.batch_size})
    return job.model_copy(update={"data": data}), scenario.scaled([num] * num)


def make_scenario(question: Question, clock: Clock) -> Scenario:
    second = clock.compute_s
    slowdowns = [
        {"worker": f"w{i % len(question.speeds)}", "from_s": (100 * i + 20) * second, "to_s": (100 * i + 50) * second,
         "factor": 4.0}
        for i in range(20 * question.slow_in_turn)
    ]  # fmt: skip
    return Scenario(
        workers=tuple(second * speed for speed in question.speeds),
        jitter=JITTER,
        slowdowns=slowdowns,
        latency_s=clock.latency_s,
        server_s=clock.server_s,
        iterations=ENDLESS,
    )
