"""Runs attacks and certificates for scores: one record per input, target, norm and name.

A run stores each record as soon as there is one, and a resumed run computes only the missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from cleverscore.attacks.attack import ATTACKS, AttackFunction, attack, attack_name
from cleverscore.attacks.best_attack import BEST
from cleverscore.attacks.presets import PRESETS
from cleverscore.brackets.records import NORMS, AttackRecord, CertificateRecord, Key
from cleverscore.certificates.certify import certifies_box, certify, check_method
from cleverscore.errors import InputError, SettingError
from cleverscore.inputs.targets import takes_smallest
from cleverscore.models.classifier import Classifier
from cleverscore.scores.score import Score, Scores

ATTACKED_TOGETHER = 32  # inputs: enough to fill a batch, few enough that their records are soon on disk
CERTIFIED_TOGETHER = 8  # inputs


class BoundRow(Protocol):
    """What attacks and certificates are computed for: an input, a norm and a target. A `Score` is one."""

    @property
    def input(self) -> int:
        """The id of the input."""

    @property
    def p(self) -> float:
        """The norm."""

    @property
    def radius(self) -> float:
        """The radius up to which certificates are searched."""

    @property
    def target(self) -> int:
        """The target class; not used where `target_kind` means the smallest score over several targets."""

    @property
    def target_kind(self) -> str:
        """The kind of target, as in `Score`."""


def bracketed(scores: Scores) -> tuple[Score, ...]:
    """The rows that get bounds: those with the smallest score over targets if there are any, else all rows."""
    smallest = tuple(row for row in scores.rows if takes_smallest(row.target_kind))
    return smallest or scores.rows


def target_or_any(row: BoundRow) -> int | None:
    """The class that an attack on a row has to reach; None for any class but the predicted one."""
    return None if takes_smallest(row.target_kind) else row.target


def split_attack(name: str) -> tuple[str, str]:
    """Name and preset of an attack; without a preset it is "paper".

    >>> split_attack("cw"), split_attack("ddn:quick")
    (('cw', 'paper'), ('ddn', 'quick'))
    """
    short, _, preset = name.partition(":")
    return short, preset or "paper"


def checked_attacks(names: Sequence[str | AttackFunction]) -> list[str | AttackFunction]:
    """Attacks by name or as functions, each once, "best" replaced by the best attack; an error for unknown names."""
    if isinstance(names, str):
        raise SettingError(f"attacks={names!r}: give a list of names, such as ['{names}']")
    checked: list[str | AttackFunction] = []
    for name in names:
        if not isinstance(name, str):
            if not callable(name):
                raise SettingError(f"attack {name!r}: give a name or a function")
            if attack_name(name) in (*ATTACKS, "best", *(attack_name(other) for other in checked if other is not name)):
                raise SettingError(f"two attacks are called {attack_name(name)}; results are kept by name: rename one")
            checked.append(name)
            continue
        short, preset = split_attack(name)
        if preset not in PRESETS or short not in (*ATTACKS, "best"):
            raise SettingError(
                f"attack {name!r}: choose one of {', '.join(ATTACKS)} or best, with a preset if you like "
                f"({', '.join(PRESETS)}), as in ddn:quick"
            )
        chosen = BEST if short == "best" else (short,)
        checked += [each if preset == "paper" else f"{each}:{preset}" for each in chosen]
    return list(dict.fromkeys(checked))


def run_attacks(
    classifier: Classifier,
    images: Mapping[int, torch.Tensor],
    rows: Sequence[BoundRow],
    names: Sequence[str | AttackFunction],
    *,
    seed: int = 0,
    done: Collection[Key] = (),
    on_adversarial: Callable[[AttackRecord, torch.Tensor], None] | None = None,
) -> Iterator[list[AttackRecord]]:
    """Attack the inputs of rows, a batch at a time; yields the records of each batch.

    images          the inputs by id.
    names           attacks, as for `bracket`.
    done            keys of records that exist: their attacks are not run again.
    on_adversarial  gets each record of an attack that succeeded, and the adversarial input.
    """
    for chosen, run, todo in missing_attacks(rows, names, done):
        for start in range(0, len(todo), ATTACKED_TOGETHER):
            part = todo[start : start + ATTACKED_TOGETHER]
            yield _attacked(classifier, images, part, chosen, run, seed, on_adversarial)


def missing_attacks(
    rows: Sequence[BoundRow], names: Sequence[str | AttackFunction], done: Collection[Key]
) -> Iterator[tuple[str | AttackFunction, float, list[BoundRow]]]:
    """Attacks whose keys are not in `done`: each attack with the norm in which it runs and the rows that need it."""
    seen = set(done)
    for p in dict.fromkeys(row.p for row in rows):
        for chosen in checked_attacks(names):
            name, run = attack_name(chosen), _norm_of_run(chosen, p)
            for targeted in (False, True):
                todo = [
                    row
                    for row in rows
                    if row.p == p
                    and (target_or_any(row) is not None) == targeted
                    and (row.input, target_or_any(row), name, run) not in seen
                ]
                seen |= {(row.input, target_or_any(row), name, run) for row in todo}
                if todo:
                    yield chosen, run, todo


def _norm_of_run(chosen: str | AttackFunction, p: float) -> float:
    """The norm in which an attack is run to bound a score in norm p.

    An attack that does not support norm p runs once in its own norm, and its distance is measured in all norms. A
    preset that refines results in norm p runs once for each norm.
    """
    if not isinstance(chosen, str) or p not in NORMS:
        return p
    short, preset = split_attack(chosen)
    return p if p in ATTACKS[short] or PRESETS[preset][short].refine else ATTACKS[short][0]


def _attacked(
    classifier: Classifier,
    images: Mapping[int, torch.Tensor],
    rows: Sequence[BoundRow],
    chosen: str | AttackFunction,
    p: float,
    seed: int,
    on_adversarial: Callable[[AttackRecord, torch.Tensor], None] | None,
) -> list[AttackRecord]:
    x = torch.stack([images[row.input] for row in rows])
    short, preset = split_attack(chosen) if isinstance(chosen, str) else (chosen, "paper")
    targets = None if target_or_any(rows[0]) is None else [row.target for row in rows]
    result = attack(classifier, x, short, p=p, targets=targets, preset=preset, seed=seed)
    steps = (result.adversarial.to(x) - x).flatten(1).double()
    lengths = torch.linalg.vector_norm(steps, p, dim=1).cpu().numpy()
    records = [
        AttackRecord(
            input=row.input,
            target=target_or_any(row),
            name=attack_name(chosen),
            p=p,
            found=int(result.found[i]),
            distortion=float(lengths[i]) if result.success[i] else math.inf,
            l1=float(result.l1[i]),
            l2=float(result.l2[i]),
            linf=float(result.linf[i]),
            seconds=result.seconds / len(rows),
        )
        for i, row in enumerate(rows)
    ]
    if on_adversarial is not None:
        for i, record in enumerate(records):
            if result.success[i]:
                on_adversarial(record, result.adversarial[i])
    return records


def run_certificates(
    classifier: Classifier,
    images: Mapping[int, torch.Tensor],
    rows: Sequence[BoundRow],
    method: str,
    *,
    region: str = "ball",
    done: Collection[Key] = (),
) -> Iterator[list[CertificateRecord]]:
    """Certify the inputs of rows up to the radius of their scores, a batch at a time; yields the records of each batch.

    A method that cannot certify region="box" certifies the whole ball, which holds in the box as well.

    images  the inputs by id.
    done    keys of records that exist: they are not computed again.
    """
    check_method(classifier, method)
    for (p, radius, kind), todo in missing_certificates(rows, method, done).items():
        counted = region if certifies_box(method, p) else "ball"
        for start in range(0, len(todo), CERTIFIED_TOGETHER):
            part = todo[start : start + CERTIFIED_TOGETHER]
            x = torch.stack([images[row.input] for row in part])
            targets = kind if takes_smallest(kind) else [[row.target] for row in part]
            found = certify(classifier, x, p=p, targets=targets, method=method, limit=radius, region=counted)
            yield [
                CertificateRecord(
                    row.input, target_or_any(row), method, p, float(found.radius[i]), found.seconds / len(part)
                )
                for i, row in enumerate(part)
            ]


def missing_certificates(
    rows: Sequence[BoundRow], method: str, done: Collection[Key]
) -> dict[tuple[float, float, str], list[BoundRow]]:
    """The rows for which `done` has no key of a certificate, by (norm, radius, kind of target)."""
    found: dict[tuple[float, float, str], list[BoundRow]] = {}
    for row in rows:
        if (row.input, target_or_any(row), method, row.p) not in done:
            found.setdefault((row.p, row.radius, row.target_kind), []).append(row)
    return found


def images_by_id(classifier: Classifier, images: torch.Tensor, scores: Scores) -> dict[int, torch.Tensor]:
    """The input of each id in `scores`; `images` must have the inputs of the scores, in the same order."""
    predicted = {score.input: score.predicted for score in scores}
    if len(predicted) != len(images):
        raise InputError(
            f"there are {len(images)} inputs and scores of {len(predicted)}; pass the inputs that were scored, in order"
        )
    with torch.no_grad():
        now = np.array([int(classifier.logits(x[None]).argmax()) for x in images])
    for i, (input_id, before) in enumerate(predicted.items()):
        if now[i] != before:
            raise InputError(
                f"input {input_id} was predicted {before} when it was scored and is {now[i]} here; pass the classifier "
                "and the inputs that were scored, in the same order"
            )
    return dict(zip(predicted, images, strict=True))
