"""Runs made of drawn numbers: everything that shows results can be tested without computing any gradient."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.brackets.records import AttackRecord, CertificateRecord
from cleverscore.brackets.run_bounds import aim, bracketed
from cleverscore.estimators.measurements import Measurements
from cleverscore.norms import norm_name
from cleverscore.runs.results import stored_scores
from cleverscore.runs.schema import StoredBlocks
from cleverscore.runs.store import Store
from cleverscore.runs.study import StudyConfig, versions


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
    **meta: Any,
) -> Path:
    """A run whose margins depend on `seed` and `factor`, and whose block maxima on `noise_seed`."""
    config = StudyConfig(
        model, data, norms, targets, blocks=blocks, block_size=8, seed=noise_seed or 0,
        model_fingerprint=fingerprint or model, data_fingerprint="data",
    )  # fmt: skip
    rules = {norm: asdict(config.settings(norm).rule) for norm in norms}
    content = {"config": asdict(config), "used": {"bounds": [0, 1]}, "versions": versions(), "command": None}
    content["rules"] = rules
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
            target, name = aim(head), f"{attack}:{norm_name(head.p)}"
            records.append(AttackRecord(head.input, target, name, head.p, head.target, length, **lengths, seconds=0.1))
            if certified:
                records.append(CertificateRecord(head.input, target, "crown", head.p, 0.4 * head.value, 0.1))
        store.append_bounds(records)
    return run


def in_old_format(run: Path, version: int) -> None:
    """Rewrite a run as formats 1 (no bounds) and 2 had it: a row per target, no checksums."""
    with Store.open(run) as store:
        meta = store.meta
        measurements = [(norm, item) for norm in ("1", "2", "inf") for item in store.measurements(norm)]
    path = run / "run.sqlite"
    path.unlink()
    old = sqlite3.connect(path)
    old.executescript(
        """
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE profiles (
            input INTEGER NOT NULL, norm TEXT NOT NULL, target INTEGER NOT NULL,
            radii BLOB NOT NULL, norms BLOB NOT NULL, gradients INTEGER NOT NULL, outcome TEXT NOT NULL,
            PRIMARY KEY (input, norm, target)
        );
        CREATE TABLE maxima (
            input INTEGER NOT NULL, norm TEXT NOT NULL, target INTEGER NOT NULL, first_block INTEGER NOT NULL,
            rank INTEGER NOT NULL, label INTEGER, predicted INTEGER NOT NULL, margin REAL NOT NULL,
            block_size INTEGER NOT NULL, maxima BLOB NOT NULL, seconds REAL NOT NULL, stopped TEXT NOT NULL,
            PRIMARY KEY (input, norm, target, first_block)
        );
        """
    )
    if version > 1:
        old.executescript(
            """
            CREATE TABLE attacks (
                input INTEGER NOT NULL, target INTEGER NOT NULL, attack TEXT NOT NULL, norm TEXT NOT NULL,
                found INTEGER NOT NULL, distortion REAL NOT NULL, l1 REAL NOT NULL, l2 REAL NOT NULL,
                linf REAL NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (input, target, attack, norm)
            );
            CREATE TABLE certificates (
                input INTEGER NOT NULL, target INTEGER NOT NULL, method TEXT NOT NULL, norm TEXT NOT NULL,
                radius REAL NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (input, target, method, norm)
            );
            """
        )
    old.executemany("INSERT INTO meta VALUES (?, ?)", [(key, json.dumps(value)) for key, value in meta.items()])
    for norm, item in measurements:
        for rank, target in enumerate(item.targets):
            row = (
                item.input_id, norm, target, 0, rank, item.label, item.predicted, item.margins[rank],
                item.block_sizes[rank], item.maxima[rank].tobytes(), item.seconds, item.stopped[rank],
            )  # fmt: skip
            old.execute(f"INSERT INTO maxima VALUES ({', '.join('?' * 12)})", row)
            if item.profiles:
                profile = item.profiles[rank]
                shape = (profile.radii.tobytes(), profile.norms.tobytes(), profile.gradients, profile.outcome)
                old.execute("INSERT INTO profiles VALUES (?, ?, ?, ?, ?, ?, ?)", (item.input_id, norm, target, *shape))
    old.execute(f"PRAGMA user_version = {version}")
    old.commit()
    old.close()
