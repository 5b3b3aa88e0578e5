"""evaluate(): scores by several methods, attacks and certificates in one call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from cleverscore.attacks.attack import AttackFunction
from cleverscore.brackets.bracket import Bracket, bracket_from, signs_of
from cleverscore.brackets.presets import Preset, preset_of
from cleverscore.brackets.records import CertificateRecord
from cleverscore.brackets.run_bounds import bracketed, checked_attacks, images_by_id, run_attacks, run_certificates
from cleverscore.errors import CertificateError, CleverWarning, SettingError
from cleverscore.inputs.radius import box_width, resolved_radius
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier, checked_classifier
from cleverscore.models.input_box import box_of
from cleverscore.norms import parse_norm
from cleverscore.scores.clever import clever
from cleverscore.scores.score import Scores


def evaluate(
    classifier: Classifier,
    images: Any,
    *,
    preset: str | Preset = "quick",
    norms: Sequence[float | str] = (2.0,),
    targets: TargetsLike = "untargeted",
    radius: float | str | None = None,
    methods: Sequence[str] | None = None,
    blocks: int | None = None,
    block_size: int | None = None,
    tolerance: float | None = None,
    attacks: Sequence[str | AttackFunction] | None = None,
    certificates: Sequence[str] | None = None,
    region: str | None = None,
    seed: int = 0,
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Bracket:
    """Certified radii, scores by several methods, and attacks for a batch of images, as one bracket.

    images      (n, *input_shape), in the classifier's input units.
    preset      "quick" (small adaptive blocks, sharp, a quick attack), "thorough" (up to 500 x 1024 points, sharp, the
                default attack, CROWN where the network allows it) or "paper" (CLEVER with 500 x 1024 points, radius 5).
    norms       a list of norms: numbers p >= 1, or "inf".
    radius      for all norms; "auto" is 5 in l2 and 0.3 in linf, times the width of the classifier's bounds. Default:
                that of the preset.
    methods     a list of methods, as in `clever`. The result has the scores of the first method in `score`, and a
                bracket for each of the others in `others`.
    blocks, block_size, tolerance   override those of the preset.
    attacks, certificates           lists that override those of the preset; [] for none. A method in `certificates`
                                    that cannot certify the network raises an error; one of the preset is left out with
                                    a warning.
    region      "box": scores, attacks and, in linf, certificates by crown are about inputs within the classifier's
                bounds only; all other certificates hold for the whole ball. It is the default for a classifier with
                bounds, except in preset "paper". "ball": scores and certificates are about all points of the ball, as
                in the paper; attacks stay within the bounds.
    Other arguments are those of `clever`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus(), torch.nn.Linear(8, 3))
    >>> found = evaluate(Classifier(model, bounds=(0.0, 1.0)), torch.rand(2, 4))
    >>> found.method, [other.method for other in found.others], len(found)
    ('paper', ['sharp'], 2)
    """
    plan = preset_of(
        preset, methods=methods, blocks=blocks, block_size=block_size, tolerance=tolerance, radius=radius,
        attacks=attacks,
    )  # fmt: skip
    x = checked_classifier(classifier).inputs(images)
    if isinstance(norms, (str, float, int)):
        raise SettingError(f"norms={norms!r}: give a list, such as [{norms!r}]")
    for p in norms:
        parse_norm(p)
    checked_attacks(plan.attacks)
    region = plan.region_for(classifier.bounds) if region is None else region
    box_of(region, classifier.bounds)
    width = box_width(classifier.bounds, float(x.min()), float(x.max()))
    scores = [
        Scores.joined(
            [
                clever(
                    classifier, x, p=p, targets=targets, method=method, region=region, seed=seed, labels=labels,
                    radius=resolved_radius(plan.radius, p, width),
                    blocks=plan.blocks, block_size=plan.block_size, tolerance=plan.tolerance, ids=ids, workers=workers,
                    progress=progress,
                )
                for p in norms
            ],
            classifier.class_names,
        )
        for method in plan.methods
    ]  # fmt: skip
    by_id = images_by_id(classifier, x, scores[0])
    rows = bracketed(scores[0])
    above = list(chain.from_iterable(run_attacks(classifier, by_id, rows, plan.attacks, seed=seed)))
    below: list[CertificateRecord] = []
    for method in plan.certificates if certificates is None else certificates:
        try:
            below += chain.from_iterable(run_certificates(classifier, by_id, rows, method, region=region))
        except CertificateError as error:
            if certificates is not None:
                raise
            warnings.warn(f"{method} gives no certificate for this network: {error}", CleverWarning, stacklevel=2)
    found = bracket_from(scores[0], above, below, scores[1:])
    return replace(found, signs=signs_of(classifier, by_id, found))
