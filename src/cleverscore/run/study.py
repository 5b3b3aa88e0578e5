"""A study: one model, one data set, one or more norms, kept in a run directory and resumed by repeating it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch

import cleverscore
from cleverscore.balls import norm_name, parse_norm
from cleverscore.classifier import Classifier
from cleverscore.cost import Estimate, estimate_for
from cleverscore.errors import InputError, StoreError
from cleverscore.gathering import gather
from cleverscore.run.store import FILE_NAME, Store
from cleverscore.run.thumbnails import Picture, thumbnail
from cleverscore.score import Score, Scores, score_from
from cleverscore.settings import Settings
from cleverscore.subjects import Subject, prepare
from cleverscore.targets import TargetsLike


@dataclass(frozen=True)
class StudyConfig:
    """What a study computes; two studies with equal configs are the same study."""

    model: str
    data: str
    norms: tuple[str, ...] = ("2",)
    targets: str = "untargeted"
    radius: float | None = None
    blocks: int = 500
    block_size: int = 1024
    seed: int = 0
    method: str = "paper"
    inside: str | None = None
    tolerance: float | None = None
    budget: str | None = None
    model_fingerprint: str = ""
    data_fingerprint: str = ""
    inputs: str = "all"
    skip_misclassified: bool = False

    @classmethod
    def stored(cls, store: Store) -> StudyConfig:
        """The config that a run was made with."""
        config = store.meta["config"]
        return cls(**{**config, "norms": tuple(config["norms"])})

    def settings(self, norm: str) -> Settings:
        """The settings of one norm."""
        return Settings(
            p=parse_norm(norm), targets=parse_targets(self.targets, 1), radius=self.radius, blocks=self.blocks,
            block_size=self.block_size, seed=self.seed, method=self.method, inside=self.inside,
            tolerance=self.tolerance, budget=self.budget,
        )  # fmt: skip

    def short_hash(self) -> str:
        """Eight characters that differ where any setting does."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]


def parse_targets(text: str, count: int) -> TargetsLike:
    """Targets as the command line writes them: a name, or classes such as "3,5" for every input."""
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() for part in parts):
        return [[int(part) for part in parts]] * count
    return text


def fingerprint_model(classifier: Classifier) -> str:
    """A hash of weights, preprocessing, transform and box: changed weights make another study."""
    digest = hashlib.sha256()
    _add_weights(digest, classifier.module)
    constants = [None if t is None else t.double().tolist() for t in (classifier.mean, classifier.std)]
    digest.update(json.dumps([classifier.bounds, classifier.outputs, constants]).encode())
    for transform in (classifier.transform, classifier.transform_backward):
        if transform is not None:  # a model without one keeps the hash that its runs have
            digest.update(_identity(transform).encode())
            if isinstance(transform, torch.nn.Module):
                _add_weights(digest, transform)
    return digest.hexdigest()[:16]


def _add_weights(digest: hashlib._Hash, module: torch.nn.Module) -> None:
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        if isinstance(tensor, torch.Tensor):
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def _identity(transform: Any) -> str:
    """What tells one transform from another: its name, its code and the values it closes over; no memory addresses."""
    code = getattr(transform, "__code__", None)
    if isinstance(transform, partial):
        parts = [_identity(transform.func), repr(transform.args), repr(transform.keywords)]
    elif code is not None:
        cells = [cell.cell_contents for cell in getattr(transform, "__closure__", None) or ()]
        values = [*code.co_consts, *code.co_names, *(getattr(transform, "__defaults__", None) or ()), *cells]
        parts = [
            transform.__qualname__,
            code.co_code.hex(),
            *(_identity(v) if callable(v) else repr(v) for v in values),
        ]
    else:
        parts = [type(transform).__qualname__, repr(transform)]
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(parts))


def versions() -> dict[str, str]:
    """The software that computes."""
    return {
        "cleverscore": cleverscore.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


class Study:
    """A config with its model and inputs, checked and ready to run."""

    def __init__(
        self,
        config: StudyConfig,
        classifier: Classifier,
        images: npt.NDArray[Any],
        labels: npt.NDArray[np.int64] | None,
        ids: Sequence[int],
        *,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.config = config
        self.class_names = class_names
        self.classifier = classifier
        self.settings = {norm_name(parse_norm(norm)): config.settings(norm) for norm in config.norms}
        self.subjects = prepare(
            classifier,
            images,
            targets=parse_targets(config.targets, len(ids)),
            labels=None if labels is None else labels.tolist(),
            ids=ids,
            seed=config.seed,
        )
        if config.skip_misclassified:
            self.subjects = [subject for subject in self.subjects if subject.label in (None, subject.predicted)]
            if not self.subjects:
                raise InputError("all inputs are misclassified, and misclassified inputs are skipped: nothing is left")

    def open_store(self, folder: Path, *, fresh: bool = False, command: str | None = None) -> Store:
        """Create the run directory, or open it if it holds this very study; `command` is kept, to be repeated."""
        path = folder / FILE_NAME
        if fresh and path.exists():
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        if not path.exists():
            meta = {
                "config": asdict(self.config), "used": self._used(), "versions": versions(), "command": command,
                "class_names": None if self.class_names is None else list(self.class_names),
                "inputs": len(self.subjects),
            }  # fmt: skip
            return Store.create(folder, meta)
        store = Store.open(folder)
        before, now = store.meta["config"], json.loads(json.dumps(asdict(self.config)))
        changed = [f"{key}: {before.get(key)!r} then, {now[key]!r} now" for key in now if before.get(key) != now[key]]
        if changed:
            store.close()
            raise StoreError(
                f"{folder} holds a run with other settings ({'; '.join(changed)}); choose another --out, or --fresh to "
                "start over"
            )
        return store

    def _used(self) -> dict[str, Any]:
        """Values that the config leaves to the model or the method."""
        one = next(iter(self.settings.values()))
        constants = {
            name: None if values is None else values.tolist()
            for name, values in (("mean", self.classifier.mean), ("std", self.classifier.std))
        }
        return {
            "radius": one.radius,
            "inside": one.ball.inside,
            "bounds": self.classifier.bounds,
            "outputs": self.classifier.outputs,
            **constants,
            "transform": None if self.classifier.transform is None else _identity(self.classifier.transform),
        }

    def pending(self, store: Store) -> dict[str, list[Subject]]:
        """Inputs not yet stored, per norm."""
        done = store.done()
        return {
            norm: [subject for subject in self.subjects if (subject.input_id, norm) not in done]
            for norm in self.settings
        }

    def points(self, pending: dict[str, list[Subject]]) -> int:
        """How many points are still to be drawn."""
        return sum(
            len(subjects) * self.settings[norm].points(self.subjects[0].x.numel()) for norm, subjects in pending.items()
        )

    def estimate(
        self, pending: dict[str, list[Subject]], *, chunk_size: int | None = None, workers: int | None = None
    ) -> Estimate:
        """What the missing part costs at most."""
        parts = [
            estimate_for(self.classifier, subjects, self.settings[norm], chunk_size=chunk_size, workers=workers)
            for norm, subjects in pending.items()
            if subjects
        ]
        return replace(
            parts[0],
            seconds=sum(part.seconds for part in parts),
            gradients=sum(part.gradients for part in parts),
            points=sum(part.points for part in parts),
        )

    def run(
        self,
        store: Store,
        *,
        chunk_size: int | None = None,
        workers: int | None = None,
        on_points: Callable[[int], None] | None = None,
    ) -> None:
        """Draw what is missing; every finished input is stored at once."""
        pending = self.pending(store)
        store.append_pictures(self._pictures(store, {s.input_id: s for part in pending.values() for s in part}))
        for norm, subjects in pending.items():
            if subjects:
                flow = gather(
                    self.classifier, subjects, self.settings[norm],
                    chunk_size=chunk_size, workers=workers, on_points=on_points,
                )  # fmt: skip
                for _position, item in flow:
                    store.append(norm, item)

    def _pictures(self, store: Store, subjects: dict[int, Subject]) -> dict[int, Picture]:
        stored = store.pictures() if subjects else {}
        bounds = self.classifier.bounds
        made = {
            i: thumbnail(subject.x.detach().cpu().float().numpy(), bounds)
            for i, subject in subjects.items()
            if i not in stored
        }
        return {i: picture for i, picture in made.items() if picture is not None}


def describe_run(store: Store) -> str:
    """One line: what the run is of."""
    config = StudyConfig.stored(store)
    norms = ", ".join(f"l{norm_name(parse_norm(norm))}" for norm in config.norms)
    rule = config.settings(config.norms[0])
    work = "ascent" if rule.sharp else f"{config.blocks} blocks of {config.block_size}"
    return (
        f"{config.model} on {config.data}: {norms}, {config.targets}, method {config.method}, radius {rule.radius:g}, "
        f"{work}, seed {config.seed}"
    )


def stored_scores(store: Store) -> Scores:
    """The scores of a run, derived from its maxima, all norms together."""
    config = StudyConfig.stored(store)
    rows: list[Score] = []
    heads: list[Score] = []
    for norm in config.norms:
        evidence = store.evidence(norm_name(parse_norm(norm)))
        if evidence:
            scores = score_from(evidence, config.settings(norm).rule)
            rows += scores.rows
            heads += scores.heads
    return Scores(tuple(rows), tuple(heads))
