"""best_attack(): the smallest distortion that any of several attacks finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.attacks.attack import ATTACKS, Attacked, AttackFunction, checked_effort, make_job, run_attack
from cleverscore.attacks.refine import distances
from cleverscore.errors import SettingError
from cleverscore.models.classifier import Classifier
from cleverscore.norms import parse_norm

Array = npt.NDArray[np.float64]

# The attack that gives the smallest distances for its time, in every norm (benchmarks/attacks.py compares it with
# others).
BEST: tuple[str, ...] = ("descent",)


@dataclass(frozen=True)
class BestAttack:
    """The smallest distortion that any of several attacks found, input by input.

    p               the norm in which the attacks are compared.
    attacks         the results of each attack for all n inputs.
    distortion      (n,), the smallest in norm p, infinite where all failed.
    names           for each input, the attack with the smallest distortion, "" where all failed.
    adversarial     (n, *shape), the adversarial input of that attack; the input itself where all failed.
    found           (n,), the class of the adversarial input.
    """

    p: float
    attacks: tuple[Attacked, ...]
    distortion: Array
    names: tuple[str, ...]
    adversarial: torch.Tensor = field(repr=False)
    found: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.distortion)

    @property
    def success(self) -> npt.NDArray[np.bool_]:
        """(n,), whether any attack succeeded."""
        return np.isfinite(self.distortion)

    @property
    def seconds(self) -> float:
        """Seconds that all attacks took together."""
        return sum(attacked.seconds for attacked in self.attacks)


def best_attack(
    classifier: Classifier,
    images: Any,
    names: str | AttackFunction | Sequence[str | AttackFunction] = "best",
    *,
    p: float | str = 2.0,
    targets: Any = None,
    preset: str = "default",
    region: str | None = None,
    seed: int = 0,
    chunk_size: int | None = None,
    workers: int | None = None,
) -> BestAttack:
    """Run several attacks and keep, for each input, the result with the smallest distortion in norm p.

    names       one attack or several, by name or as your own functions; "best" is the attack with the smallest
                distances for its time, "descent".
    p           any norm p >= 1.
    preset      "quick", "default", "long" or "paper".

    Other arguments are those of `attack`.

    >>> classifier = Classifier(torch.nn.Linear(4, 3), bounds=(-4.0, 4.0))
    >>> best = best_attack(classifier, torch.rand(2, 4), p=1.5, preset="quick")
    >>> best.success, best.names
    (array([ True,  True]), ('descent', 'descent'))
    """
    norm = parse_norm(p)
    if isinstance(names, str):
        names = BEST if names == "best" else (names,)
    elif callable(names):
        names = (names,)
    if not names:
        raise SettingError(f"names={names!r}: name at least one of {', '.join(ATTACKS)}, or say 'best'")
    efforts = {name: checked_effort(name, preset) for name in names}
    job = make_job(
        classifier, images, p=norm, targets=targets, region=region, seed=seed, chunk_size=chunk_size, workers=workers
    )
    attacks = tuple(run_attack(job, name, effort) for name, effort in efforts.items())
    x = job.criterion.x
    sizes = np.stack(
        [np.where(each.success, distances(x, each.adversarial, norm).cpu().numpy(), math.inf) for each in attacks]
    )
    winners = sizes.argmin(0)
    rows = range(len(x))
    distortion = sizes[winners, list(rows)]
    return BestAttack(
        p=norm,
        attacks=attacks,
        distortion=distortion,
        names=tuple(attacks[winners[i]].attack if np.isfinite(distortion[i]) else "" for i in rows),
        adversarial=torch.stack([attacks[winners[i]].adversarial[i] for i in rows]),
        found=np.array([attacks[winners[i]].found[i] for i in rows], dtype=np.int64),
    )
