"""Selects the rows of the data that are scored."""

from __future__ import annotations

import torch

from cleverscore.errors import InputError
from cleverscore.loading.sources import Images, Source
from cleverscore.models.classifier import Classifier

LOOKED_AT = 64  # inputs that are read and classified at a time


def rows_of(text: str | None, count: int) -> list[int]:
    """The rows that a text such as "3,17,40-49" selects among `count` rows; None selects all.

    >>> rows_of("3,5-7", 10)
    [3, 5, 6, 7]
    """
    if text is None:
        return list(range(count))
    rows: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdecimal()) or (dash and not (last.isascii() and last.isdecimal())):
            raise InputError(f"--index {text!r}: write rows and ranges such as 3,17,40-49")
        end = int(last if dash else first)
        if max(end, int(first)) >= count:
            raise InputError(f"--index names row {max(end, int(first))}, but the data has rows 0 to {count - 1}")
        rows += range(int(first), end + 1)
    if not rows:
        raise InputError(f"--index {text!r} names no rows")
    return list(dict.fromkeys(rows))


def correct_rows(source: Source, classifier: Classifier, rows: list[int], limit: int | None) -> list[int]:
    """The first `limit` of `rows` whose inputs are classified correctly (None: all); later inputs are not read."""
    if source.labels is None:
        raise InputError("the data has no labels, so nobody knows which inputs are classified correctly")
    kept: list[int] = []
    for start in range(0, len(rows), LOOKED_AT):
        part = rows[start : start + LOOKED_AT]
        right = predictions(classifier, source.read(part)) == torch.from_numpy(source.labels[part])
        kept += [row for row, good in zip(part, right.tolist(), strict=True) if good]
        if limit is not None and len(kept) >= limit:
            break
    if not kept:
        raise InputError(f"none of {len(rows)} inputs is classified correctly: nothing is left to score")
    return kept[:limit]


def predictions(classifier: Classifier, images: Images) -> torch.Tensor:
    """The predicted classes (n,) of inputs."""
    x = classifier.inputs(images)
    classifier.check(x)
    with torch.no_grad():
        return torch.cat([classifier.logits(part).argmax(1) for part in torch.split(x, LOOKED_AT)]).cpu()
