"""Losses and gradients of every kind of label against formulas written out, with weights, masks and several labels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.errors import ModelError
from heterps.training.model.objectives import Objectives

N = 40
NAN = float("nan")
SCORE = torch.linspace(-2, 3, N)
CLASS_SCORES = torch.sin(torch.arange(N * 4.0)).reshape(N, 4)
CLICK = (torch.arange(N) % 3 == 0).float()
RATING = torch.cos(torch.arange(N * 1.0)) * 4
COUNT = (torch.arange(N) % 5).float()
CLASS = (torch.arange(N) % 4).float()
WEIGHT = torch.linspace(0, 2, N)

KINDS: dict[str, tuple[dict[str, Any], Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "binary": (
        {"loss": "binary"},
        SCORE,
        CLICK,
        lambda x, y: -(y * torch.sigmoid(x).log() + (1 - y) * torch.sigmoid(-x).log()),
    ),
    "classes": (
        {"loss": "classes", "num_classes": 4},
        CLASS_SCORES,
        CLASS,
        lambda x, y: x.exp().sum(1).log() - x[torch.arange(len(y)), y.long()],
    ),
    "mse": ({"loss": "mse"}, SCORE, RATING, lambda x, y: (x - y) ** 2),
    "huber": (
        {"loss": "huber", "delta": 0.7},
        SCORE,
        RATING,
        lambda x, y: torch.where((x - y).abs() <= 0.7, (x - y) ** 2 / 2, 0.7 * ((x - y).abs() - 0.35)),
    ),
    "poisson": ({"loss": "poisson"}, SCORE, COUNT, lambda x, y: x.exp() - y * x),
}


class Plain(nn.Module):
    pass


def both(
    objectives: Objectives,
    output: Any,
    label: Tensor,
    expected: Callable[[Any], Tensor],
    num_samples: int | None = None,
) -> None:
    """The loss and its gradients are those of `expected`."""
    leaves = output if isinstance(output, dict) else {"": output}
    mine, theirs = ({name: t.clone().requires_grad_() for name, t in leaves.items()} for _ in range(2))
    loss = objectives.loss(Plain(), mine if isinstance(output, dict) else mine[""], label, num_samples)
    loss.backward()
    wanted = expected(theirs if isinstance(output, dict) else theirs[""])
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    for name in leaves:
        torch.testing.assert_close(mine[name].grad, theirs[name].grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_has_the_mean_of_the_losses_of_its_samples(kind: str) -> None:
    how, output, label, formula = KINDS[kind]
    objectives = Objectives(Schema(labels={"y": how}))
    both(objectives, output, label, lambda x: formula(x, label).mean())
    for first, last in pairwise((0, 7, 8, N)):
        piece = slice(first, last)
        both(objectives, output[piece], label[piece], lambda x, p=piece: formula(x, label[p]).sum() / N, N)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_multiply_losses_and_the_divisor_stays_the_number_of_samples(kind: str) -> None:
    how, output, label, formula = KINDS[kind]
    objectives = Objectives(Schema(labels={"y": how}, weight="w"))
    both(objectives, output, torch.stack([label, WEIGHT], 1), lambda x: (WEIGHT * formula(x, label)).sum() / N)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_label_adds_nothing_and_has_no_gradient(kind: str) -> None:
    how, output, label, formula = KINDS[kind]
    objectives = Objectives(Schema(labels={"y": {**how, "missing": "mask"}}))
    there = torch.arange(N) % 4 != 1
    label = torch.where(there, label, NAN)
    both(objectives, output, label, lambda x: formula(x[there], label[there]).sum() / N)


def test_several_labels_add_up_by_their_weights() -> None:
    labels = {"click": {"loss": "binary", "weight": 0.5}, "rating": {"loss": "mse", "weight": 2, "missing": "mask"},
              "kind": {"loss": "classes", "num_classes": 4}}  # fmt: skip
    objectives = Objectives(Schema(labels=labels, weight="w"))
    rating = torch.where(torch.arange(N) % 2 == 0, RATING, NAN)
    output = {"kind": CLASS_SCORES, "rating": SCORE.unsqueeze(1), "click": -SCORE}

    def expected(x: dict[str, Tensor]) -> Tensor:
        squares = torch.zeros(N)
        squares[::2] = KINDS["mse"][3](x["rating"][::2, 0], rating[::2])
        each = 0.5 * KINDS["binary"][3](x["click"], CLICK) + 2 * squares + KINDS["classes"][3](x["kind"], CLASS)
        return (each * WEIGHT).sum() / N

    both(objectives, output, torch.stack([CLICK, rating, CLASS, WEIGHT], 1), expected)
    scores = objectives.scores(objectives.checked(Plain(), output, N))
    torch.testing.assert_close(scores, torch.cat([-SCORE.unsqueeze(1), SCORE.unsqueeze(1), CLASS_SCORES], 1))


# --- methods of models -----------------------------------------------------------------------------------------------

TWO = Schema(labels={"click": "binary", "rating": {"loss": "mse", "weight": 3}})
TWO_OUTPUTS, TWO_LABELS = {"click": SCORE, "rating": -SCORE}, torch.stack([CLICK, RATING], 1)


class OwnLosses(nn.Module):
    def losses(self, output: dict[str, Tensor], label: dict[str, Tensor]) -> Tensor:
        return (output["click"] - label["click"]).abs() + (output["rating"] - label["rating"]).abs()


class LossesByLabel(nn.Module):
    def losses(self, output: dict[str, Tensor], label: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: (output[name] - label[name]).abs() for name in output}


def test_own_losses_of_several_labels_are_taken_as_they_are_or_weighted_by_label() -> None:
    click, rating = (SCORE - CLICK).abs(), (-SCORE - RATING).abs()
    objectives = Objectives(TWO)
    torch.testing.assert_close(objectives.loss(OwnLosses(), TWO_OUTPUTS, TWO_LABELS), (click + rating).mean())
    torch.testing.assert_close(objectives.loss(LossesByLabel(), TWO_OUTPUTS, TWO_LABELS), (click + 3 * rating).mean())
    weighted = Objectives(TWO.model_copy(update={"weight": "w"}))
    label = torch.cat([TWO_LABELS, WEIGHT.unsqueeze(1)], 1)
    torch.testing.assert_close(
        weighted.loss(LossesByLabel(), TWO_OUTPUTS, label), (WEIGHT * (click + 3 * rating)).mean()
    )


class OwnLoss(nn.Module):
    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        return (output - label).abs().max()


class OwnWeightedLoss(nn.Module):
    def loss(self, output: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        return (weight * (output - label).abs()).max()


def test_a_loss_of_whole_batches_takes_weights_as_a_third_argument() -> None:
    objectives = Objectives(Schema(weight="w"))
    label = torch.stack([CLICK, WEIGHT], 1)
    assert objectives.loss(OwnWeightedLoss(), SCORE, label) == (WEIGHT * (SCORE - CLICK).abs()).max()
    with pytest.raises(ModelError, match=r"data\.columns\.weight.*`loss\(output, label, weight\)`.*`losses\("):
        objectives.loss(OwnLoss(), SCORE, label)


# --- what a model may return -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (SCORE, r"labels click, rating, so the model must return a dict .*; it returned shape \[40\]"),
        ({"click": SCORE}, r"it returned a dict of click\. Let its forward return \{'click': ..., 'rating': ...\}"),
        ({"click": SCORE, "rating": SCORE[:3]}, r"one prediction for each of the 40 samples for rating; .*shape \[3\]"),
        ({"click": SCORE, "rating": CLASS_SCORES}, r"samples for rating; it returned shape \[40, 4\]"),
    ],
)
def test_a_model_of_several_labels_returns_an_output_for_each(output: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Objectives(TWO).checked(Plain(), output, N)


def test_a_model_of_one_label_may_return_a_dict_too() -> None:
    assert Objectives(Schema(labels={"rating": "mse"})).checked(Plain(), {"rating": SCORE}, N) is SCORE
