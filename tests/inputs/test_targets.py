from __future__ import annotations

import pytest
import torch

import cleverscore as cs
from cleverscore.inputs.targets import choose

LOGITS = torch.tensor([[5.0, 1.0, 4.0, 0.0, 2.0], [0.0, 1.0, 2.0, 3.0, 4.0]])


def test_named_targets() -> None:
    ids = [0, 1]
    assert choose(LOGITS, "runner_up", ids=ids) == ((2,), (3,))
    assert choose(LOGITS, "least_likely", ids=ids) == ((3,), (0,))
    assert choose(LOGITS, "all", ids=ids) == ((1, 2, 3, 4), (0, 1, 2, 3)) == choose(LOGITS, "untargeted", ids=ids)


def test_random_excludes_predicted_runner_up_and_least_likely() -> None:
    many = LOGITS[:1].expand(300, -1)
    chosen = [row[0] for row in choose(many, "random", ids=range(300))]
    assert set(chosen) == {1, 4}
    assert 100 < chosen.count(1) < 200  # 150 expected, 8.7 standard deviation: five of them
    assert choose(many[:9], "random", ids=range(7, 16)) == tuple((j,) for j in chosen[7:16])
    assert [row[0] for row in choose(many, "random", ids=range(300), seed=1)] != chosen


@pytest.mark.parametrize("classes", [2, 3])
def test_random_with_few_classes_takes_any_other_class(classes: int) -> None:
    logits = LOGITS[:1, :classes].expand(50, -1)
    assert {row[0] for row in choose(logits, "random", ids=range(50))} == set(range(1, classes))


def test_given_targets() -> None:
    assert choose(LOGITS, [[3], [0, 1, 0]], ids=[0, 1]) == ((3,), (0, 1))


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([[0], [1]], "target 0 is the predicted class of input 0"),
        ([[1], [5]], "classes 0 to 4"),
        ([[1], [-1]], "not a class"),
        ([[1]], "1 lists for 2 inputs"),
        ([[1], []], "at least one"),
        ([1, 2], "a list"),
        (3, "one list of classes per input"),
        ("nearest", "choose one of"),
    ],
)
def test_impossible_targets_are_refused(targets: object, words: str) -> None:
    with pytest.raises(cs.CleverError, match=words):
        choose(LOGITS, targets, ids=[0, 1])
