"""Which loss is minimised, and what a model may return."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.errors import ModelError
from heterps.training.model.objectives import Objectives, has_own_loss, is_mean_over_samples

BINARY, OF_CLASSES = Objectives(), Objectives(Schema(num_classes=3))
OUTPUT, LABEL = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0]), torch.tensor([1.0, 0, 0, 1, 1])


class Plain(nn.Module):
    pass


class Squares(nn.Module):
    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        return (output.reshape(len(label), -1)[:, 0] - label) ** 2


class KeepsALoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.MSELoss()


def test_a_loss_that_a_model_keeps_as_an_attribute_is_not_its_method() -> None:
    torch.testing.assert_close(BINARY.loss(KeepsALoss(), OUTPUT, LABEL), BINARY.loss(Plain(), OUTPUT, LABEL))


class Total(nn.Module):
    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        return ((output - label) ** 2).sum()


def test_the_default_is_the_mean_binary_cross_entropy() -> None:
    p = torch.sigmoid(OUTPUT)
    expected = -(LABEL * p.log() + (1 - LABEL) * (1 - p).log()).mean()
    torch.testing.assert_close(BINARY.loss(Plain(), OUTPUT, LABEL), expected)
    torch.testing.assert_close(BINARY.loss(Plain(), OUTPUT.unsqueeze(1), LABEL), expected)


def test_a_models_own_losses_are_averaged_and_its_own_loss_is_taken_as_it_is() -> None:
    squares = (OUTPUT - LABEL) ** 2
    torch.testing.assert_close(BINARY.loss(Squares(), OUTPUT, LABEL), squares.mean())
    torch.testing.assert_close(BINARY.loss(Total(), OUTPUT, LABEL), squares.sum())


@pytest.mark.parametrize("model", [Plain(), Squares()])
@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 1, 4, 5)])
def test_pieces_add_up_to_the_loss_of_the_batch(model: nn.Module, bounds: tuple[int, ...]) -> None:
    assert is_mean_over_samples(model)
    parts = [BINARY.loss(model, OUTPUT[a:b], LABEL[a:b], 5) for a, b in pairwise(bounds)]
    torch.testing.assert_close(sum(parts), BINARY.loss(model, OUTPUT, LABEL))


def test_a_loss_of_a_whole_batch_promises_nothing_about_its_samples() -> None:
    assert not is_mean_over_samples(Total())


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_one_logit_a_sample_is_what_any_model_may_return(shape: tuple[int, ...]) -> None:
    output = OUTPUT.reshape(shape)
    assert BINARY.checked(Plain(), output, 5) is output
    assert np.array_equal(BINARY.scores(output), OUTPUT.numpy())


def test_with_its_own_loss_a_model_may_return_more_scores_the_logit_first() -> None:
    output = torch.stack([OUTPUT, -OUTPUT], dim=1)
    assert BINARY.checked(Squares(), output, 5) is output
    assert np.array_equal(BINARY.scores(output), OUTPUT.numpy())
    with pytest.raises(ModelError, match=r"returned shape \[5, 2\].*`losses\(output, label\)`"):
        BINARY.checked(Plain(), output, 5)


@pytest.mark.parametrize(
    "output", [None, OUTPUT[:4], OUTPUT.sum(), torch.zeros(5, 0), torch.zeros(5, 1, 1)], ids=lambda o: str(type(o))
)
def test_anything_else_is_refused(output: object) -> None:
    with pytest.raises(ModelError, match="one logit for each of the 5 samples"):
        BINARY.checked(Squares(), output, 5)


def test_losses_that_are_not_one_a_sample_are_refused() -> None:
    class Reduced(nn.Module):
        def losses(self, output: Tensor, label: Tensor) -> Tensor:
            return (output - label).abs().mean()

    with pytest.raises(ModelError, match=r"5 samples; it returned shape \[\]. Do not reduce"):
        BINARY.loss(Reduced(), OUTPUT, LABEL)


# --- more than two classes -------------------------------------------------------------------------------------------

SCORES, CLASSES = torch.tensor([[2.0, 0, -1], [0, 1, 0], [1, 1, 1], [0, 0, 3]]), torch.tensor([0.0, 1, 2, 0])


def test_scores_of_classes_are_trained_on_their_cross_entropy() -> None:
    each = -torch.log_softmax(SCORES, 1)[torch.arange(4), CLASSES.long()]
    torch.testing.assert_close(OF_CLASSES.loss(Plain(), SCORES, CLASSES), each.mean())
    pieces = [OF_CLASSES.loss(Plain(), SCORES[part], CLASSES[part], 4) for part in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(pieces[0] + pieces[1], each.mean())


def test_a_loss_that_is_the_cross_entropy_is_none_of_the_models_own() -> None:
    class Named(Squares):
        loss_is_cross_entropy = True

    assert has_own_loss(Squares())
    assert not has_own_loss(Named())
    assert not has_own_loss(Plain())
    assert BINARY.checked(Named(), SCORES, 4) is SCORES, "its method may still take more scores"


def test_metrics_get_the_scores_of_all_classes() -> None:
    np.testing.assert_array_equal(OF_CLASSES.scores(SCORES), SCORES.numpy())
    np.testing.assert_array_equal(BINARY.scores(SCORES), SCORES[:, 0].numpy())


@pytest.mark.parametrize("model", [Plain(), Squares()])
@pytest.mark.parametrize("output", [SCORES[:, :2], SCORES[:, 0], SCORES[:3], [1.0]])
def test_a_model_of_classes_scores_each_of_them(model: nn.Module, output: object) -> None:
    assert OF_CLASSES.checked(model, SCORES, 4) is SCORES
    with pytest.raises(ModelError, match=r"num_classes is 3, .*shape \[4, 3\]; it returned"):
        OF_CLASSES.checked(model, output, 4)


def test_predictions_are_probabilities_values_and_rates_and_outputs_of_own_losses_are_left_alone() -> None:
    labels = {"rating": {"loss": "mse"}, "click": {"loss": "binary"}, "visits": {"loss": "poisson"}}
    several = Objectives(Schema(label="click", labels=labels))  # type: ignore[arg-type]
    found = several.predictions(Plain(), {"rating": OUTPUT, "click": OUTPUT.unsqueeze(1), "visits": OUTPUT})
    assert list(found) == ["score", "score_rating", "score_visits"]
    torch.testing.assert_close(found["score"], 1 / (1 + torch.exp(-OUTPUT)))
    torch.testing.assert_close(found["score_rating"], OUTPUT)
    torch.testing.assert_close(found["score_visits"], torch.exp(OUTPUT))
    classes = OF_CLASSES.predictions(Plain(), torch.tensor([[0.0, 1.0, 2.0]]))["score"]
    torch.testing.assert_close(classes.sum(1), torch.ones(1))
    torch.testing.assert_close(BINARY.predictions(Squares(), OUTPUT)["score"], OUTPUT)
