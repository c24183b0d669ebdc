"""The zoo: layers as drawn, formulas, learning, and errors where the schema does not fit."""

from __future__ import annotations

import re
import sys
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn
from zoo_cases import CASES, CLICKS, OF_IMAGES, small_batch, small_inputs, small_model

from heterps.config import Schema
from heterps.data.keys import slots_from_ids
from heterps.errors import ModelError
from heterps.model.trace import trace
from heterps.model.zoo import COLUMNS, ZOO, PairwiseSum, ctr_dnn, deepfm, match_net, nce, two_emb

PAPER = {"ctr_dnn": 16, "match_net": 16, "two_emb": 10, "nce": 5}


def paper_model(name: str) -> nn.Module:
    return ZOO[name](COLUMNS.get(name, Schema()))


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "num_layers"), PAPER.items())
def test_the_papers_models_have_the_papers_number_of_layers(name: str, num_layers: int) -> None:
    assert len(trace(paper_model(name)).layers) == num_layers


@pytest.mark.parametrize("name", ZOO)
def test_the_drawing_numbers_the_layers_as_they_are_traced(name: str) -> None:
    drawing = sys.modules[f"heterps.model.zoo.{name}"].__doc__ or ""
    drawn = {int(number): word for number, word in re.findall(r"\[(\d+) ([\w.]+)\]", drawing)}
    layers = trace(paper_model(name)).layers
    assert max(drawn) == len(layers) - 1
    for number, word in drawn.items():
        assert word in re.sub(r"(sum|add|pad)_\d", r"\1", layers[number].name), (
            f"layer {number} is {layers[number].name}"
        )


@pytest.mark.parametrize(("depth", "num_layers"), [(1, 6), (3, 10), (6, 16), (48, 100)])
def test_ctr_dnn_gets_deeper_by_two_layers_a_step(depth: int, num_layers: int) -> None:
    assert len(trace(ctr_dnn(Schema(), depth=depth)).layers) == num_layers


def test_the_papers_widths() -> None:
    def widths(module: nn.Module) -> list[tuple[int, int]]:
        return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]

    assert widths(ctr_dnn(Schema())) == [(13 + 26 * 16, 400), *[(400, 400)] * 5, (400, 2)]
    assert widths(paper_model("two_emb")) == [(260, 400), (400, 400), (400, 50), (50, 128), (178, 1)]


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("nce", "mmoe", *OF_IMAGES)])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_model_gives_one_logit_a_sample(name: str, ragged: bool) -> None:
    assert small_model(name)(*small_inputs(name, 5, ragged=ragged)).shape == (5,)


def test_mmoe_mixes_its_experts_for_each_label_by_a_gate() -> None:
    model = small_model("mmoe")
    dense, slots = small_inputs("mmoe", 5)
    x = torch.cat([dense, model.embedding(slots).flatten(1)], dim=1)
    experts = [expert(x) for expert in model.experts]
    output = model(dense, slots)
    assert list(output) == ["click", "rating"]
    for number, name in enumerate(output):
        scores = model.gates[number][0](x)
        share = scores.exp() / scores.exp().sum(1, keepdim=True)
        mixed = sum(share[:, [i]] * expert for i, expert in enumerate(experts))
        torch.testing.assert_close(output[name], model.towers[number](mixed))


def test_mmoe_gives_a_score_for_each_class_of_a_label() -> None:
    schema = Schema(labels={"kind": {"loss": "classes", "num_classes": 7}, "y": "mse"}, dense=(), slots=("s",))
    output = ZOO["mmoe"](schema)(torch.zeros(3, 0), slots_from_ids(np.zeros((3, 1), int), ("s",)))
    assert {name: list(values.shape) for name, values in output.items()} == {"kind": [3, 7], "y": [3, 1]}
    with pytest.raises(ModelError, match="at least one expert"):
        ZOO["mmoe"](schema, num_experts=0)


def test_the_softmax_of_ctr_dnn_gives_the_log_odds_of_its_scores() -> None:
    model = ctr_dnn(CLICKS, embedding_dim=4, depth=1)
    dense, slots = small_inputs("ctr_dnn", 5)
    scores = model.deep[:-1](torch.cat([dense, model.embedding(slots).flatten(1)], dim=1))
    no, yes = torch.softmax(scores, 1).unbind(1)
    torch.testing.assert_close(model(dense, slots), torch.log(yes / no))


def test_pairwise_sum_equals_the_sum_over_all_pairs() -> None:
    vectors = torch.randn(3, 6, 5, dtype=torch.float64)
    expected = sum((vectors[:, s] * vectors[:, t]).sum(1) for s, t in combinations(range(6), 2))
    torch.testing.assert_close(PairwiseSum(5)(vectors.flatten(1)), expected)


def test_deepfm_is_the_sum_of_its_three_parts() -> None:
    model = deepfm(CLICKS, embedding_dim=4, hidden=(8,))
    dense, slots = small_inputs("deepfm", 5)
    rows = model.embedding(slots)
    w, v = rows[:, :, 0], rows[:, :, 1:]
    pairs = sum((v[:, s] * v[:, t]).sum(1) for s, t in combinations(range(4), 2))
    tower = model.deep(torch.cat([dense, v.flatten(1)], 1)).squeeze(1)
    linear = dense @ model.first_order.weight[0] + model.first_order.bias + w.sum(1)
    torch.testing.assert_close(model(dense, slots), linear + pairs + tower)


def test_match_net_compares_both_items_by_the_same_tower() -> None:
    model = small_model("match_net")
    _, slots = small_inputs("match_net", 6)
    rows, user = model.item(slots), model.user_tower(model.user(slots).flatten(1))
    item, negative = (model.item_tower(part.flatten(1)) for part in (rows[:, :2], rows[:, 2:]))
    cosine = nn.functional.cosine_similarity
    torch.testing.assert_close(model(None, slots), cosine(user, item) - cosine(user, negative))


def test_match_net_finds_nothing_to_choose_between_equal_items() -> None:
    schema = COLUMNS["match_net"]
    ids = np.array([[1, 2, 7, 3, 7, 3], [4, 5, 8, 3, 8, 3]])
    slots = slots_from_ids(ids, schema.slots, schema.same_ids)
    assert torch.equal(small_model("match_net")(None, slots), torch.zeros(2))


def test_match_net_losses_are_a_hinge_on_the_side_of_the_label() -> None:
    model = small_model("match_net")
    output, label = torch.tensor([1.0, 0.5, -0.5, 0.5, -1.0]), torch.tensor([1.0, 1, 1, 0, 0])
    torch.testing.assert_close(model.losses(output, label), torch.tensor([0.0, 0.3, 1.3, 1.3, 0.0]))


def test_nce_scores_context_and_negatives_by_product_and_bias() -> None:
    model = small_model("nce")
    _, slots = small_inputs("nce", 4)
    word, outputs, biases = model.words(slots)[:, 0], model.outputs(slots), model.biases(slots)[:, :, 0]
    expected = torch.stack([(word * outputs[:, j]).sum(1) + biases[:, j] for j in range(6)], dim=1)
    torch.testing.assert_close(model(None, slots), expected)


def test_nce_losses_tell_the_context_by_its_label_and_negatives_as_noise() -> None:
    scores, label = torch.randn(3, 6), torch.tensor([1.0, 0.0, 1.0])
    p = torch.sigmoid(scores - np.log(5))
    context = torch.where(label == 1, -p[:, 0].log(), -(1 - p[:, 0]).log())
    torch.testing.assert_close(small_model("nce").losses(scores, label), context - (1 - p[:, 1:]).log().sum(1))


@pytest.mark.parametrize("name", ["match_net", "nce", *OF_IMAGES])
def test_losses_of_a_sample_do_not_depend_on_the_others(name: str) -> None:
    model, batch = small_model(name).eval(), small_batch(name, 12)
    dense, slots = small_inputs(name, 12)
    label = torch.from_numpy(batch.label)
    output = model(dense, slots)
    losses = model.losses(output, label)
    for i in range(12):
        assert torch.equal(model.losses(output[i : i + 1], label[i : i + 1]), losses[i : i + 1])


# --- schemas that do not fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ZOO if name not in OF_IMAGES])
def test_a_schema_without_slots_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"data\.columns\.slots"):
        ZOO[name](Schema(dense=("a",), slots=()))


TWO = Schema(dense=(), slots=("a", "b"))
SIX = Schema(dense=(), slots=tuple("abcdef"), same_ids={"e": "c", "f": "d"})


@pytest.mark.parametrize(
    ("factory", "schema", "args", "message"),
    [
        (match_net, TWO, {}, r"needs at least 3 slots \(of the user, .*names 2: a, b"),
        (nce, TWO, {}, r"needs at least 3 slots \(a word, "),
        (two_emb, TWO, {}, r"needs at least 6 slots"),
        (two_emb, TWO, {"tiny": ["a", "b"]}, "leave at least one"),
        (two_emb, TWO, {"tiny": ["x"]}, r"tiny names x, .*slots are a, b"),
        (two_emb, TWO, {"tiny": "a"}, "must be a list"),
        (match_net, Schema(slots=("a", "b", "c")), {}, r"same_ids: \{c: b\}"),
        (nce, SIX, {}, r"same_ids: \{c: b, d: b, e: b, f: b\}"),
        (match_net, SIX, {"user": ["a"]}, "together"),
        (match_net, SIX, {"user": ["a"], "item": ["c", "d"], "negative": ["e"]}, "2 and 1 slots"),
        (match_net, SIX, {"user": ["a"], "item": ["c"], "negative": ["f"]}, r"same_ids: \{f: c\}"),
        (ctr_dnn, TWO, {"hidden": [4], "depth": 2}, "not both"),
        (ctr_dnn, TWO, {"depth": 0}, "at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_what_to_do(factory, schema, args, message) -> None:
    with pytest.raises(ModelError, match=message):
        factory(schema, **args)


def test_match_net_takes_thirds_of_the_slots_or_those_that_are_named() -> None:
    thirds = match_net(SIX)
    assert (thirds.user.slots, thirds.item.slots) == (("a", "b"), ("c", "d", "e", "f"))
    named = match_net(SIX, user=["b"], item=["d"], negative=["f"])
    assert (named.user.slots, named.item.slots) == (("b",), ("d", "f"))


def test_two_emb_takes_the_last_five_slots_as_tiny_or_those_that_are_named() -> None:
    model = paper_model("two_emb")
    assert (len(model.big.slots), model.tiny.slots) == (26, ("T1", "T2", "T3", "T4", "T5"))
    named = two_emb(CLICKS, tiny=["t"])
    assert (named.big.slots, named.tiny.slots) == (("s", "u", "v"), ("t",))


def test_every_model_has_a_case_here() -> None:
    assert CASES.keys() == ZOO.keys()
