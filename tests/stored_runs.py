"""Runs made of drawn numbers: everything that shows results can be tested without computing any gradient."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.brackets.records import AttackRecord, CertificateRecord
from cleverscore.brackets.run_bounds import bracketed, target_or_any
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.measurements import Measurements
from cleverscore.norms import norm_name
from cleverscore.runs.results import StudyConfig, kept_of_estimators, stored_scores
from cleverscore.runs.schema import StoredBlocks
from cleverscore.runs.store import Store
from cleverscore.runs.study import versions


def made_run(
    folder: Path,
    *,
    inputs: int = 12,
    classes: int = 5,
    norms: tuple[str, ...] = ("2", "inf"),
    targets: str = "untargeted",
    blocks: int = 40,
    model: str = "made:model",
    data: str = "made.npz",
    names: list[str] | None = None,
    pictures: bool = True,
    factor: float = 1.0,
    seed: int = 0,
    noise_seed: int | None = None,
    fingerprint: str = "",
    sharp: float | None = None,
    **meta: Any,
) -> Path:
    """A run whose margins depend on `seed` and `factor`, and whose block maxima on `noise_seed`.

    With `sharp`, the run has method sharp besides paper, with scores of about this share of the paper's.
    """
    config = StudyConfig(
        model, data, norms, targets, blocks=blocks, block_size=8, seed=noise_seed or 0,
        model_fingerprint=fingerprint or model, data_fingerprint="data",
        method="paper" if sharp is None else "paper,sharp",
    )  # fmt: skip
    content = {"config": asdict(config), "used": {"bounds": [0, 1]}, "versions": versions(), "command": None}
    content |= kept_of_estimators({name: config.settings(*series) for name, series in config.series().items()})
    made = np.random.default_rng(seed)
    noise = np.random.default_rng([seed, 1 if noise_seed is None else noise_seed])
    with Store.create(folder, {**content, "class_names": names, "inputs": inputs, **meta}) as store:
        store._connection.execute("PRAGMA synchronous = OFF")  # nothing here needs to survive a crash
        for i in range(inputs):
            predicted = int(made.integers(classes))
            others = tuple(j for j in range(classes) if j != predicted)
            others = others[:1] if targets == "runner_up" else others
            margins = tuple(factor * made.uniform(1.0, 9.0, len(others)))
            label = predicted if i % 7 else int((predicted + 1) % classes)
            for norm in norms:
                scale = 10.0 if norm == "2" else 200.0
                maxima = tuple(scale * (1.0 - 0.2 * noise.weibull(3.0, blocks)) for _ in others)
                count = len(others)
                item = Measurements(
                    i, label, predicted, others, margins, maxima, (8,) * count, 0.1, ("all blocks",) * count
                )
                store.append([StoredBlocks(norm, item)])
                if sharp is not None:
                    profiles = tuple(
                        RadialProfile(r, r, math.inf, np.array([margin]), (1.0,), 9, "ascended")
                        for margin, r in ((margin, sharp * margin / scale) for margin in margins)
                    )
                    nothing = (np.empty(0),) * count
                    found = Measurements(
                        i, label, predicted, others, margins, nothing, (0,) * count, 0.1, ("settled",) * count, profiles
                    )
                    store.append([StoredBlocks(f"{norm}/sharp", found)])
        if pictures:
            rows, columns = np.mgrid[0:12, 0:12]
            store.append_pictures(
                {i: ((rows * (i + 1) + columns * 9) % 256).astype(np.uint8)[..., None] for i in range(inputs)}
            )
    return folder


def add_bounds(run: Path, *, attack: str = "cw", certified: bool = True) -> Path:
    """Attacks and certificates beside made scores: every fifth score lies above its attack, every ninth has none."""
    with Store.open(run, write=True) as store:
        records: list[AttackRecord | CertificateRecord] = []
        for head in bracketed(stored_scores(store, maxima=False)):
            length = head.value * (0.8 if head.input % 5 == 0 else 1.7)
            length = math.inf if head.input % 9 == 4 else length
            lengths = {"l1": math.inf, "l2": math.inf, "linf": math.inf, f"l{norm_name(head.p)}": length}
            target, name = target_or_any(head), f"{attack}:{norm_name(head.p)}"
            records.append(AttackRecord(head.input, target, name, head.p, head.target, length, **lengths, seconds=0.1))
            if certified:
                records.append(CertificateRecord(head.input, target, "crown", head.p, 0.4 * head.value, 0.1))
        store.append_bounds(records)
        noise = np.random.default_rng(3)
        store.append_adversarials(
            {
                (record.input, norm_name(record.p)): (
                    record.distortion,
                    record.found,
                    np.clip(pictures[record.input].astype(int) + noise.integers(-9, 10, (12, 12, 1)), 0, 255).astype(
                        np.uint8
                    ),
                )
                for pictures in [store.pictures()]
                for record in records
                if isinstance(record, AttackRecord) and math.isfinite(record.distortion) and record.input in pictures
            }
        )
    return run
