"""Reads a run: its config, its scores, its progress. Reading does not import torch, so that it is fast."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cleverscore.estimators.estimator import Wording
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.inputs.radius import AUTO, resolved_radius
from cleverscore.inputs.targets import TargetsLike
from cleverscore.norms import norm_name, numbers_by_norm, parse_norm
from cleverscore.runs.store import Store
from cleverscore.scores.score import Scores, Tail, fit_tails, score_from

if TYPE_CHECKING:
    from cleverscore.brackets.bracket import Bracket
    from cleverscore.estimators.settings import Settings

FITTED_TOGETHER = 1024  # inputs: their maxima are in memory at the same time


@dataclass(frozen=True)
class StudyConfig:
    """The settings of a study, as text and numbers that are stored; studies with equal configs are the same study."""

    model: str
    data: str
    norms: tuple[str, ...] = ("2",)
    targets: str = "untargeted"
    radius: float | str | None = None  # a number, or numbers by norm as in "5,inf=0.3"
    blocks: int = 500
    block_size: int = 1024
    seed: int = 0
    method: str = "paper"  # one, or several as in "paper,sharp"
    region: str = "ball"
    tolerance: float | None = None
    budget: str | None = None
    model_fingerprint: str = ""
    data_fingerprint: str = ""
    inputs: str = "all"
    skip_misclassified: bool = False
    penalty: float | None = None  # None for the method's own

    @classmethod
    def stored(cls, store: Store) -> StudyConfig:
        """The stored config of a run."""
        config = store.meta["config"]
        return cls(**{**config, "norms": tuple(config["norms"])})

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the order in which they were given."""
        return tuple(self.method.split(","))

    def series(self, method: str | None = None) -> dict[str, tuple[str, str]]:
        """The series (a norm and a method) of the study, of all methods or of one: name in the store -> (norm, method).

        A series of the first method is named by its norm alone, as in "inf", the others as in "inf/sharp".
        """
        return {
            norm_name(parse_norm(norm)) + (f"/{each}" if place else ""): (norm, each)
            for place, each in enumerate(self.methods)
            for norm in self.norms
            if method in (None, each)
        }

    def settings(self, norm: str, method: str | None = None) -> Settings:
        """The settings of one norm and one method, by default the first method."""
        from cleverscore.estimators.settings import (
            Settings,  # with it comes torch, which those who only read can do without
        )

        return Settings(
            p=parse_norm(norm), targets=parse_targets(self.targets, 1), radius=self.radius_of(norm), blocks=self.blocks,
            block_size=self.block_size, seed=self.seed, method=method or self.methods[0], region=self.region,
            tolerance=self.tolerance, budget=self.budget, penalty=self.penalty,
        )  # fmt: skip

    def radius_of(self, norm: str) -> float | None:
        """The radius for one norm, None for the method's default."""
        if not isinstance(self.radius, str):
            return self.radius
        radii = dict(part.rpartition("=")[::2] for part in self.radius.split(","))
        found = radii.get(norm_name(parse_norm(norm)), radii.get(""))
        return None if found is None else float(found)

    def short_hash(self) -> str:
        """A hash of eight characters over all settings except `inputs` and `budget`, by which a run may be extended."""
        settings = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("inputs", "budget") and (name != "penalty" or value is not None)
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def parse_targets(text: str, count: int) -> TargetsLike:
    """Parse targets of the command line: a name stays text, classes such as "3,5" become a list for each of `count`
    inputs.
    """
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() for part in parts):
        return [[int(part) for part in parts]] * count
    return text


def resolved_radii(
    values: Sequence[str], norms: Sequence[str], default: float | str | None, width: float
) -> float | str | None:
    """Radii of the command line as one number, or as text with a number for each of the `norms`.

    values      such as "5" (every norm), "inf=0.3" (one norm), "auto" or "inf=auto".
    default     for norms without a value: "auto" for a radius that suits the norm, None for the method's default.
    width       width of the input box.

    >>> resolved_radii([], ["2"], None, 1.0), resolved_radii(["3", "linf=0.3"], ["2", "inf"], None, 1.0)
    (None, '2=3.0,inf=0.3')
    >>> resolved_radii([], ["2", "inf"], "auto", 1.0), resolved_radii(["inf=auto"], ["inf"], None, 255.0)
    ('2=5.0,inf=0.3', 76.5)
    """
    named = [value for value in values if value.rpartition("=")[2] != AUTO]
    asked: dict[str, float | str] = dict(numbers_by_norm(named, "radius", examples=("5", "inf=0.3")))
    for value in values:
        norm, equals, number = value.rpartition("=")
        if number == AUTO:
            asked[norm_name(parse_norm(norm)) if equals else ""] = AUTO
    names = [norm_name(parse_norm(norm)) for norm in norms]
    found = {name: resolved_radius(asked.get(name, asked.get("", default)), name, width) for name in names}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return ",".join(f"{name}={radius}" for name, radius in found.items() if radius is not None)


def rules_of(store: Store, config: StudyConfig, method: str | None = None) -> dict[str, ScoreRule]:
    """The score rule of each series (norm and method) of a run by the series' name, for all methods or for one."""
    kept = store.meta["rules"]
    return {series: ScoreRule.restored(kept[series]) for series in config.series(method)}


def kept_of_estimators(settings: Mapping[str, Settings]) -> dict[str, Any]:
    """What a run stores about its estimators, so that a reader needs none of them, from the settings of each series.

    The key "rules" has the score rule of each series, "wordings" the texts of each estimator by its name.
    """
    return {
        "rules": {series: each.rule.stored() for series, each in settings.items()},
        "wordings": {each.estimator.name: asdict(each.estimator.wording(each)) for each in settings.values()},
    }


def wordings_of(store: Store) -> dict[str, Wording]:
    """The texts about a run's estimators for tables and reports, by the estimators' names."""
    return {name: Wording(**words) for name, words in store.meta["wordings"].items()}


def describe_run(store: Store) -> str:
    """One line about the run: model, data, norms, targets, methods, radii, region, work and seed."""
    config = StudyConfig.stored(store)
    norms = ", ".join(f"l{norm_name(parse_norm(norm))}" for norm in config.norms)
    rules = rules_of(store, config, config.methods[0])
    radii = radii_text({norm_name(rule.p): rule.radius for rule in rules.values()})
    wordings = wordings_of(store)
    methods = f"method{'s' * (len(wordings) > 1)} {' and '.join(wordings)}"
    work = ", ".join(words.work for words in wordings.values())
    return (
        f"{config.model} on {config.data}: {norms}, {config.targets}, {methods}, radius {radii}, region "
        f"{config.region}, {work}, "
        f"seed {config.seed}"
    )


def radii_text(radii: Mapping[str, float]) -> str:
    """Radii by norm as text: one number if they are equal.

    >>> radii_text({"2": 5.0, "inf": 5.0}), radii_text({"2": 5.0, "inf": 0.3})
    ('5', '5 (l2), 0.3 (linf)')
    """
    if len(set(radii.values())) <= 1:
        return "".join(f"{radius:g}" for radius in list(radii.values())[:1])
    return ", ".join(f"{radius:g} (l{norm_name(parse_norm(norm))})" for norm, radius in radii.items())


def what_is_missing(store: Store) -> str | None:
    """A sentence that says how much of a run is missing; None if it is finished."""
    meta = store.meta
    bounds = meta.get("bounds") or {}
    wanted = int(meta.get("inputs", 0)) * len(StudyConfig.stored(store).series())
    begun = len(covered := store.covered())
    whole = len(store.done(covered))
    if whole >= wanted:
        if bounds.get("complete", True):
            return None
        return (
            "unfinished: all scores are complete, but not all bounds that were asked for "
            f"({', '.join(bounds['asked'])}); the command that made the run resumes it"
        )
    part = f", {begun - whole} more in part" if begun > whole else ""
    return f"unfinished: {whole} of {wanted} scores are complete{part}; the command that made the run resumes it"


def stored_scores(store: Store, *, maxima: bool = True, method: str | None = None) -> Scores:
    """The scores of a run by one of its methods, by default the first, all norms together.

    Without `maxima`, scores are computed from stored fits and have no block maxima, so that a large run opens fast.
    """
    config = StudyConfig.stored(store)
    parts = []
    with no_collection():
        rules = rules_of(store, config, method or config.methods[0])
        for norm, measurements in store.measurements_by_norm(list(rules), maxima=maxima).items():
            if measurements:
                rule = rules[norm]
                parts.append(score_from(measurements, rule, _tails(store, norm, rule, measurements, maxima)))
    return Scores.joined(parts, store.meta.get("class_names"))


def stored_bracket(store: Store, scores: Scores, *others: Scores) -> Bracket | None:
    """The bracket of a run, or None if the run has one method and no stored attack or certificate.

    scores      the scores of the first method.
    others      the scores of the further methods, in order; read from the store if none are given.
    """
    above, below = store.above(), store.below()
    methods = StudyConfig.stored(store).methods
    if not (above or below or len(methods) > 1):
        return None
    from cleverscore.brackets.bracket import bracket_from  # with it comes torch

    further = others or [stored_scores(store, maxima=False, method=method) for method in methods[1:]]
    return bracket_from(scores, above, below, further)


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection within the block: it takes longer than creating hundreds of thousands of scores does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def fit_new(store: Store, config: StudyConfig) -> None:
    """Fit and store the tails of inputs that have no stored fit, or one from fewer blocks."""
    for name, rule in rules_of(store, config).items():
        kept = store.tails(name, rule.tail_fit)
        new = [
            item.input_id for item in store.measurements(name, maxima=False) if not _fits(kept.get(item.input_id), item)
        ]
        for start in range(0, len(new), FITTED_TOGETHER):
            items = store.measurements(name, inputs=new[start : start + FITTED_TOGETHER])
            found = dict(zip((item.input_id for item in items), fit_tails(items, rule), strict=True))
            store.append_tails(name, rule.tail_fit, found)


def _tails(
    store: Store, norm: str, rule: ScoreRule, measurements: Sequence[Measurements], maxima: bool
) -> list[Sequence[Tail]]:
    """The tails of each of the measurements: the stored fits, and new ones (not stored) where there are none."""
    kept = store.tails(norm, rule.tail_fit)
    new = [item for item in measurements if not _fits(kept.get(item.input_id), item)]
    if new and not maxima:
        new = store.measurements(norm, inputs=[item.input_id for item in new])
    fresh = dict(zip((item.input_id for item in new), fit_tails(new, rule), strict=True))
    found = {**kept, **fresh}
    return [found.get(item.input_id, []) for item in measurements]


def _fits(kept: Sequence[Tail] | None, item: Measurements) -> bool:
    """Whether the stored tails `kept` were fitted to all maxima of an item; an item of a search needs no tails."""
    return bool(item.profiles) or (kept is not None and [tail.fit.blocks for tail in kept] == list(item.counts))
