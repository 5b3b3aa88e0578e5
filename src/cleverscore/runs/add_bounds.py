"""Attacks and certificates of a study: missing ones are computed and stored a batch at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import torch

from cleverscore.attacks.attack import checked_effort
from cleverscore.brackets.bracket import bracket_from, network_signs, signs_of
from cleverscore.brackets.masking import Sign
from cleverscore.brackets.records import AttackRecord, CertificateRecord
from cleverscore.brackets.run_bounds import (
    bracketed,
    checked_attacks,
    run_attacks,
    run_certificates,
    split_attack,
    target_or_any,
)
from cleverscore.certificates.certify import check_method
from cleverscore.norms import norm_name, parse_norm
from cleverscore.runs.results import stored_scores
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from cleverscore.runs.thumbnails import Picture, thumbnail
from cleverscore.scores.score import Scores


@dataclass(frozen=True)
class Bounds:
    """The attacks and certificates requested for a run; they can be added to a run at any time."""

    attacks: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.attacks or self.certificates)

    def with_earlier(self, store: Store) -> Bounds:
        """These bounds and those requested for the run before, so that added inputs get all of them."""
        kept = store.meta.get("bounds") or {}
        return Bounds(
            tuple(dict.fromkeys([*kept.get("attacks", ()), *self.attacks])),
            tuple(dict.fromkeys([*kept.get("certificates", ()), *self.certificates])),
        )

    def remember(self, store: Store, *, complete: bool) -> None:
        """Store in the run which bounds were requested, and whether they are complete."""
        names = {"attacks": list(self.attacks), "certificates": list(self.certificates)}
        store.remember("bounds", {"asked": [*self.attacks, *self.certificates], **names, "complete": complete})

    def check(self, study: Study) -> None:
        """Raise an error for bounds that cannot be computed, before anything is computed."""
        for name in checked_attacks(self.attacks):
            checked_effort(*split_attack(str(name)))
        for method in self.certificates:
            check_method(study.classifier, method)


def run_bounds(
    study: Study,
    store: Store,
    bounds: Bounds,
    *,
    on_inputs: Callable[[str, int, int], None] | None = None,
    stop: Stop | None = None,
) -> None:
    """Attack and certify the inputs whose scores are complete.

    `on_inputs` is called with the name of the attack or certificate, the norm, the number of finished inputs, and their
    total.
    """
    if not bounds:
        return
    images = {example.input_id: example.x for example in study.examples}
    # A run that grew may hold inputs that this command did not ask for.
    rows = [row for row in bracketed(stored_scores(store, maxima=False)) if row.input in images]
    done = {record.key for record in store.above()}
    proved = {record.key for record in store.below()}
    pictures = _Pictures(study, store)
    attacks = run_attacks(
        study.classifier, images, rows, bounds.attacks, seed=study.config.seed, done=done, on_adversarial=pictures.add
    )
    proofs = (
        run_certificates(study.classifier, images, rows, method, region=study.config.region, done=proved)
        for method in bounds.certificates
    )
    there = Counter((name, p) for input_id, _target, name, p in [*done, *proved] if input_id in images)
    wanted = len({(row.input, target_or_any(row)) for row in rows})
    batches: Iterator[Sequence[AttackRecord | CertificateRecord]] = chain(attacks, *proofs)
    if stop is not None and stop.asked:
        return
    for batch in batches:
        store.append_bounds(batch)
        pictures.keep()
        if on_inputs is not None:
            name, p = batch[0].name, batch[0].p
            there[name, p] += len(batch)
            on_inputs(f"{name}, l{norm_name(p)}", there[name, p], wanted)
        if stop is not None and stop.asked:
            return


def probed_signs(study: Study, store: Store) -> tuple[Sign, ...]:
    """Signs of gradient masking around a few inputs of a run; computed once and stored."""
    kept = store.meta.get("network_signs")
    if kept is None:
        settings = next(iter(study.settings.values()))
        assert settings.radius is not None  # set in Settings
        images = {example.input_id: example.x for example in study.examples}
        found = network_signs(study.classifier, images, p=settings.p, radius=settings.radius)
        kept = [asdict(sign) for sign in found]
        store.remember("network_signs", kept)
    return tuple(Sign(**{**sign, "inputs": tuple(sign["inputs"])}) for sign in kept)


class _Pictures:
    """Small pictures of the nearest adversarial inputs, in every norm of the study."""

    def __init__(self, study: Study, store: Store) -> None:
        self.store = store
        self.bounds = study.classifier.bounds
        self.norms = [parse_norm(norm) for norm in study.config.norms]
        self.lengths = {place: found[0] for place, found in store.adversarials().items()}
        self.new: dict[tuple[int, str], tuple[float, int, Picture]] = {}

    def add(self, record: AttackRecord, adversarial: torch.Tensor) -> None:
        """Add a picture if its distance is smaller than that of the stored one."""
        for p in self.norms:
            place, length = (record.input, norm_name(p)), record.length(p)
            if length < self.lengths.get(place, math.inf):
                picture = thumbnail(adversarial.detach().cpu().float().numpy(), self.bounds)
                if picture is not None:
                    self.lengths[place] = length
                    self.new[place] = length, record.found, picture

    def keep(self) -> None:
        """Store the adversarial pictures found since the last call in the run."""
        self.store.append_adversarials(self.new)
        self.new = {}


def stored_signs(study: Study, store: Store, scores: Scores) -> tuple[Sign, ...]:
    """The stored signs of gradient masking of a run, and scores above attacks in its bracket."""
    images = {example.input_id: example.x for example in study.examples}
    others = [stored_scores(store, maxima=False, method=method) for method in study.config.methods[1:]]
    bracket = bracket_from(scores, store.above(), store.below(), others)
    return signs_of(study.classifier, images, bracket, probed_signs(study, store))
