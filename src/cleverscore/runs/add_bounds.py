"""Attacks and certificates of a study: missing ones are computed and stored a batch at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import NamedTuple

import torch

from cleverscore.attacks.attack import checked_effort
from cleverscore.brackets.bracket import bracket_from, network_signs, signs_of
from cleverscore.brackets.masking import Sign
from cleverscore.brackets.records import AttackRecord, CertificateRecord
from cleverscore.brackets.run_bounds import (
    checked_attacks,
    missing_attacks,
    missing_certificates,
    run_attacks,
    run_certificates,
    split_attack,
    target_or_any,
)
from cleverscore.certificates.certify import check_method
from cleverscore.inputs.targets import takes_smallest
from cleverscore.norms import norm_name, parse_norm
from cleverscore.runs.results import stored_scores
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from cleverscore.runs.thumbnails import Picture, thumbnail
from cleverscore.scores.score import Scores


@dataclass(frozen=True)
class Bounds:
    """The names of the attacks and certificates requested for a run; more can be requested at any time.

    attacks         upper bounds of the distance, as in `--attack`: a name, perhaps with a preset, such as "best:quick".
    certificates    lower bounds of the distance, as in `--certify`, such as "crown".
    """

    attacks: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.attacks or self.certificates)

    def with_earlier(self, store: Store) -> Bounds:
        """The names requested for the run before, then these, without repetitions: added inputs get all of them."""
        kept = store.meta.get("bounds") or {}
        return Bounds(
            tuple(dict.fromkeys([*kept.get("attacks", ()), *self.attacks])),
            tuple(dict.fromkeys([*kept.get("certificates", ()), *self.certificates])),
        )

    def remember(self, store: Store, *, complete: bool) -> None:
        """Store in the run the requested names, and whether the run is `complete`: no input lacks a score or bound."""
        names = {"attacks": list(self.attacks), "certificates": list(self.certificates)}
        store.remember("bounds", {"asked": [*self.attacks, *self.certificates], **names, "complete": complete})

    def check(self, study: Study) -> None:
        """Raise an error, before anything is computed, for unknown names and for bounds that the model rules out."""
        for name in checked_attacks(self.attacks):
            checked_effort(*split_attack(str(name)))
        for method in self.certificates:
            check_method(study.classifier, method)


class _Row(NamedTuple):
    """An input (its id) that gets bounds in norm p, for one target; certificates are searched up to the radius."""

    input: int
    p: float
    radius: float
    target: int
    target_kind: str


def _rows(study: Study, only: Collection[int] | None = None) -> list[_Row]:
    """The rows that get bounds, for all inputs or those with the ids `only`.

    In every norm, an input has one row if its score is the smallest over targets, else one row for each target.
    """
    rows = []
    for norm in study.config.norms:
        settings = study.config.settings(norm)
        assert settings.radius is not None  # set in Settings
        kind = settings.rule.target_kind
        rows += [
            _Row(example.input_id, settings.p, settings.radius, target, kind)
            for example in study.examples
            if only is None or example.input_id in only
            for target in (example.targets[:1] if takes_smallest(kind) else example.targets)
        ]
    return rows


def missing_bounds(study: Study, store: Store, bounds: Bounds) -> dict[str, set[int]]:
    """For each attack and certificate in each norm, the ids of the inputs that lack its record.

    Keys are as in "descent:quick in linf"; attacks and certificates that no input lacks are left out.
    """
    rows, found = _rows(study), dict[str, set[int]]()
    for chosen, p, todo in missing_attacks(rows, bounds.attacks, {record.key for record in store.above()}):
        found.setdefault(bound_name(str(chosen), p), set()).update(row.input for row in todo)
    proved = {record.key for record in store.below()}
    for method in bounds.certificates:
        for (p, _radius, _kind), todo in missing_certificates(rows, method, proved).items():
            found.setdefault(bound_name(method, p), set()).update(row.input for row in todo)
    return found


def bound_name(name: str, p: float) -> str:
    """The name of an attack or certificate in one norm, as forecasts have it.

    >>> bound_name("descent:quick", 2.0)
    'descent:quick in l2'
    """
    return f"{name} in l{norm_name(p)}"


def run_bounds(
    study: Study,
    store: Store,
    bounds: Bounds,
    *,
    only: Collection[int] | None = None,
    on_inputs: Callable[[str, int, int], None] | None = None,
    stop: Stop | None = None,
) -> dict[str, float]:
    """Attack and certify the inputs of a study, or `only` those with these ids, and store the records.

    on_inputs   called after every batch with a text such as "descent:quick, linf", the number of stored records of this
                attack or certificate, and the number that the study needs.
    stop        no further batch is begun once `stop.asked` is true.

    Returns the seconds that each attack and certificate took, by names as in "descent:quick in linf".
    """
    took: dict[str, float] = {}
    if not bounds or (stop is not None and stop.asked):
        return took
    images = {example.input_id: example.x for example in study.examples}
    rows = _rows(study, only)
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
    wanted = len({(row.input, target_or_any(row)) for row in _rows(study)})
    batches: Iterator[Sequence[AttackRecord | CertificateRecord]] = chain(attacks, *proofs)
    for batch in batches:
        store.append_bounds(batch)
        pictures.keep()
        name, p = batch[0].name, batch[0].p
        key = bound_name(name, p)
        took[key] = took.get(key, 0.0) + sum(record.seconds for record in batch)
        if on_inputs is not None:
            there[name, p] += len(batch)
            on_inputs(f"{name}, l{norm_name(p)}", there[name, p], wanted)
        if stop is not None and stop.asked:
            break
    return took


def probed_signs(study: Study, store: Store, *, most_seconds: float = math.inf) -> tuple[Sign, ...]:
    """Signs of gradient masking around a few inputs of a run; computed once and stored.

    The first input is always probed, a further one only if `most_seconds` have not passed.
    """
    kept = store.meta.get("network_signs")
    if kept is None:
        settings = next(iter(study.settings.values()))
        assert settings.radius is not None  # set in Settings
        images = {example.input_id: example.x for example in study.examples}
        found = network_signs(study.classifier, images, p=settings.p, radius=settings.radius, most_seconds=most_seconds)
        kept = [asdict(sign) for sign in found]
        store.remember("network_signs", kept)
    return tuple(Sign(**{**sign, "inputs": tuple(sign["inputs"])}) for sign in kept)


class _Pictures:
    """Collects a small picture of the nearest adversarial input of each input, in every norm of the study.

    lengths     distances of the nearest adversarial inputs so far, by (input, norm).
    new         distance, class and picture of those that are not stored yet, by (input, norm).
    """

    def __init__(self, study: Study, store: Store) -> None:
        self.store = store
        self.bounds = study.classifier.bounds
        self.norms = [parse_norm(norm) for norm in study.config.norms]
        self.lengths = {place: found[0] for place, found in store.adversarials().items()}
        self.new: dict[tuple[int, str], tuple[float, int, Picture]] = {}

    def add(self, record: AttackRecord, adversarial: torch.Tensor) -> None:
        """Make a picture of an adversarial input for every norm in which it is nearer than those before it."""
        for p in self.norms:
            place, length = (record.input, norm_name(p)), record.length(p)
            if length < self.lengths.get(place, math.inf):
                picture = thumbnail(adversarial.detach().cpu().float().numpy(), self.bounds)
                if picture is not None:
                    self.lengths[place] = length
                    self.new[place] = length, record.found, picture

    def keep(self) -> None:
        """Store the pictures added since the last call in the run."""
        self.store.append_adversarials(self.new)
        self.new = {}


def stored_signs(study: Study, store: Store, scores: Scores) -> tuple[Sign, ...]:
    """Signs of gradient masking in a run: those of its probes (`probed_signs`), and scores above attacks."""
    images = {example.input_id: example.x for example in study.examples}
    others = [stored_scores(store, maxima=False, method=method) for method in study.config.methods[1:]]
    bracket = bracket_from(scores, store.above(), store.below(), others)
    return signs_of(study.classifier, images, bracket, probed_signs(study, store))
