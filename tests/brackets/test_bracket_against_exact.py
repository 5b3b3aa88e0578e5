"""Certificate <= exact distance <= attack, where the exact distance is known."""

from __future__ import annotations

import math

import numpy as np

import cleverscore as cs
from tests.helpers import exact_distortion, trained_relu_network


def test_exact_distances_lie_between_certificates_and_attacks() -> None:
    classifier, x, _ = trained_relu_network()
    # The distances are those without an input box; one far away leaves them as they are.
    boxed = cs.Classifier(classifier.module, bounds=(-20.0, 20.0))
    exact = [exact_distortion(i, math.inf) for i in range(len(x))]
    low, high = (np.array([getattr(answer, end) for answer in exact]) for end in ("low", "high"))
    assert (high <= low * (1.0 + 1e-3)).all()
    certified = cs.certify(classifier, x, p="inf").radius
    attacked = cs.best_attack(boxed, x, p="inf")
    assert (certified > 0.0).all() and (certified <= high * (1.0 + 1e-6)).all()
    assert attacked.success.all() and (attacked.distortion >= low * (1.0 - 1e-6)).all()
    assert float(np.median(attacked.distortion / high)) < 1.01
