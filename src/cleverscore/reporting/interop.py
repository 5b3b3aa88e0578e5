"""Scores in other tools: a metric with update, compute and reset; MLflow; Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cleverscore.errors import InputError, MissingExtraError
from cleverscore.models.classifier import Classifier
from cleverscore.norms import norm_name
from cleverscore.scores.clever import clever
from cleverscore.scores.score import Scores

__all__ = ["CleverMetric", "log_to_mlflow", "log_to_wandb", "scalars"]


def scalars(scores: Scores, *, prefix: str = "clever") -> dict[str, float]:
    """The median, mean and smallest score of each norm and its number of inputs, by names such as clever/l2/median.

    Misclassified inputs have score 0; inputs without a score are left out.

    >>> import torch
    >>> sorted(scalars(clever(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4))))
    ['clever/l2/inputs', 'clever/l2/mean', 'clever/l2/median', 'clever/l2/smallest']
    """
    found: dict[str, float] = {}
    for p in sorted({score.p for score in scores}):
        values = np.array([score.counted for score in scores if score.p == p])
        known = values[~np.isnan(values)]
        name = f"{prefix}/l{norm_name(p)}"
        found[f"{name}/inputs"] = float(len(known))
        if len(known):
            found[f"{name}/median"] = float(np.median(known))
            found[f"{name}/mean"] = float(known.mean())
            found[f"{name}/smallest"] = float(known.min())
    return found


def log_to_mlflow(scores: Scores, *, step: int | None = None, prefix: str = "clever") -> dict[str, float]:
    """Log the values of `scalars` to the active MLflow run, and return them."""
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError(
            "logging to MLflow needs mlflow, which is not installed; run: pip install mlflow"
        ) from error
    values = scalars(scores, prefix=prefix)
    mlflow.log_metrics(values, step=step)
    return values


def log_to_wandb(scores: Scores, *, step: int | None = None, prefix: str = "clever") -> dict[str, float]:
    """Log the values of `scalars` and a histogram of scores per norm to the active run of Weights & Biases.

    Returns the values of `scalars`.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("logging to W&B needs wandb, which is not installed; run: pip install wandb") from error
    values = scalars(scores, prefix=prefix)
    histograms = {
        f"{prefix}/l{norm_name(p)}/scores": wandb.Histogram(
            [h.value for h in scores if h.p == p and h.value == h.value]
        )
        for p in sorted({score.p for score in scores})
    }
    wandb.log({**values, **histograms}, step=step)
    return values


class CleverMetric:
    """CLEVER as a metric with the interface of torchmetrics: `update`, `compute`, `reset`; torchmetrics is not needed.

    The random points of an input depend on its position among all inputs since the last `reset`, and not on how the
    inputs are divided into batches.

    classifier  the classifier that is scored.
    p           the norm.
    prefix      how the names of the values begin.
    Other options are those of `clever`; a few blocks are enough to follow a training run.

    >>> import torch
    >>> metric = CleverMetric(Classifier(torch.nn.Linear(4, 3)), p=2)
    >>> for batch in torch.rand(2, 5, 4):
    ...     metric.update(batch)
    >>> metric.compute()["clever/l2/inputs"]
    10.0
    """

    higher_is_better = True
    is_differentiable = False

    def __init__(self, classifier: Classifier, *, p: float | str = 2.0, prefix: str = "clever", **options: Any) -> None:
        for name in ("ids", "labels"):
            if name in options:
                raise InputError(f"{name} belongs to a batch, not to the metric; leave it out")
        self.classifier = classifier
        self.p = p
        self.prefix = prefix
        self.options = {"progress": False, **options}
        self.reset()

    def update(self, images: Any, labels: Sequence[int] | None = None) -> None:
        """Score one more batch of images (n, *input_shape), with their labels if they are known."""
        ids = range(self._seen, self._seen + len(images))
        scores = clever(self.classifier, images, p=self.p, labels=labels, ids=ids, **self.options)
        self._seen += len(images)
        self._parts.append(scores)

    def compute(self) -> dict[str, float]:
        """The values of `scalars` for all batches since the last `reset`."""
        if not self._parts:
            raise InputError("compute() before update(): there is no score yet")
        return scalars(self.scores, prefix=self.prefix)

    @property
    def scores(self) -> Scores:
        """The scores of all batches since the last `reset`."""
        return Scores.joined(self._parts)

    def reset(self) -> None:
        """Forget all batches."""
        self._parts: list[Scores] = []
        self._seen = 0

    def __call__(self, images: Any, labels: Sequence[int] | None = None) -> dict[str, float]:
        """Score one more batch, as `update`, and return the values of `scalars` for this batch alone."""
        self.update(images, labels)
        return scalars(self._parts[-1], prefix=self.prefix)
