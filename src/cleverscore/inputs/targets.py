"""Which classes an input is scored against (paper, section 5.1).

runner_up      the class with the second largest logit ("top-2" in the paper)
least_likely   the class with the smallest logit
random         one class other than the predicted one at random; with more than three classes neither the runner-up nor
               the least likely one
all            every class but the predicted one, with a score for each
untargeted     every class but the predicted one, with one score, the smallest over them
top:20         the 20 classes with the largest logits after the predicted one, with one score, the smallest over them
[[3], [5, 7]]  the given classes, one list per input, with a score for each
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cleverscore.errors import SettingError, TargetError
from cleverscore.randomness import philox

if TYPE_CHECKING:
    import torch

NAMES = ("untargeted", "all", "runner_up", "least_likely", "random")
GIVEN = "given"
TARGET_STREAM = 0x7461726765747321  # in the Philox key of random targets, where keys of points have the norm

TargetsLike = str | Sequence[Sequence[int]]


def target_kind(targets: TargetsLike) -> str:
    """The kind of the targets, as in the column `target_kind`: their name, or "given" for lists of classes.

    Unknown names raise a SettingError.
    """
    if not isinstance(targets, str):
        return GIVEN
    if targets not in NAMES and _top(targets) is None:
        raise SettingError(
            f"targets={targets!r}: choose one of {', '.join(NAMES)}, top:N, or one list of classes per input"
        )
    return targets


def _top(kind: str) -> int | None:
    """The number in "top:20"; None for every other kind of targets."""
    found = re.fullmatch(r"top:([1-9][0-9]*)", kind)
    return int(found[1]) if found else None


def takes_smallest(kind: str) -> bool:
    """Whether the score for this kind of targets is the smallest over several classes, as in Algorithm 2."""
    return kind == "untargeted" or _top(kind) is not None


def choose(
    logits: torch.Tensor, targets: TargetsLike, *, ids: Sequence[int], seed: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Target classes of each of n inputs, from the logits (n, K).

    A random choice depends on (seed, id, predicted class, runner-up, least likely class) alone.

    >>> import torch
    >>> choose(torch.tensor([[3.0, 1.0, 2.0, 0.0]]), "runner_up", ids=[0])
    ((2,),)
    """
    if not isinstance(targets, str):
        return _given(logits, targets, ids)
    kind = target_kind(targets)
    num_classes = logits.shape[1]
    order = logits.argsort(dim=1, descending=True, stable=True).tolist()
    if kind in ("untargeted", "all"):
        return tuple(tuple(j for j in range(num_classes) if j != ranked[0]) for ranked in order)
    if (top := _top(kind)) is not None:
        return tuple(tuple(ranked[1 : 1 + top]) for ranked in order)
    if kind == "runner_up":
        return tuple((ranked[1],) for ranked in order)
    if kind == "least_likely":
        return tuple((ranked[-1],) for ranked in order)
    return tuple((_random(ranked, seed, input_id),) for ranked, input_id in zip(order, ids, strict=True))


def _random(ranked: list[int], seed: int, input_id: int) -> int:
    candidates = sorted(ranked[2:-1] if len(ranked) > 3 else ranked[1:])
    stream = philox((seed, TARGET_STREAM), (0, 0, 0, input_id))
    return candidates[int(stream.integers(len(candidates)))]


def _given(logits: torch.Tensor, targets: Sequence[Sequence[int]], ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    num_classes = logits.shape[1]
    if not isinstance(targets, Sequence):
        raise TargetError(f"targets={targets!r}: give a name, or one list of classes per input such as [[3], [5, 7]]")
    if len(targets) != len(logits):
        raise TargetError(
            f"targets has {len(targets)} lists for {len(logits)} inputs; give one list of classes per input"
        )
    chosen = []
    for input_id, predicted, classes in zip(ids, logits.argmax(1).tolist(), targets, strict=True):
        chosen.append(checked_classes(classes, predicted=predicted, num_classes=num_classes, input_id=input_id))
    return tuple(chosen)


def checked_classes(classes: Sequence[int], *, predicted: int, num_classes: int, input_id: int) -> tuple[int, ...]:
    """The given target classes of one input, without repetitions; a TargetError if one cannot be used."""
    if isinstance(classes, (str, int)) or len(classes) == 0:
        raise TargetError(f"targets of input {input_id} are {classes!r}; give a list with at least one class")
    row = tuple(dict.fromkeys(int(j) for j in classes))
    for j in row:
        if not 0 <= j < num_classes:
            raise TargetError(
                f"target {j} of input {input_id} is not a class; there are classes 0 to {num_classes - 1}"
            )
        if j == predicted:
            raise TargetError(
                f"target {j} is the predicted class of input {input_id}; choose another class or targets='all'"
            )
    return row
