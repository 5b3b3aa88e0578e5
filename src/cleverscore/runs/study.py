"""A study: one model, one data set, one or more norms; stored in a run directory, resumed by repeating it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch

import cleverscore
from cleverscore.errors import InputError, StoreError
from cleverscore.estimators.budget import Budget
from cleverscore.inputs.examples import Example, prepare
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import box_of
from cleverscore.models.optimize import CHECKED_INPUTS
from cleverscore.runs.growth import Growth, grow
from cleverscore.runs.local_executor import InProcess
from cleverscore.runs.lock import RunLock
from cleverscore.runs.results import StudyConfig, fit_new, kept_of_estimators, parse_targets
from cleverscore.runs.shards import SHARD_SECONDS, Executor, Recipe, Shard, WorkerContext, plan
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import FILE_NAME, Store
from cleverscore.runs.thumbnails import Picture, thumbnail
from cleverscore.scores.cost import PROBE_SECONDS, Estimate, estimate_for
from cleverscore.threads import checked_workers

SECONDS_BETWEEN_FITS = 60.0  # so that people who look at a run while it goes on need not fit everything
LEAST_SHARD_SECONDS, SHARDS_AT_LEAST = 2.0, 10


def fingerprint_model(classifier: Classifier) -> str:
    """A hash of weights, preprocessing, transform, kind of outputs and box; if one changes, it is another study."""
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
    """A text that identifies a transform: its name, its code and the values in its closure; no memory addresses."""
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
    """Versions of the software."""
    return {
        "cleverscore": cleverscore.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


@dataclass(frozen=True)
class Missing:
    """What a run lacks.

    covered         the stored blocks of each (input, series).
    parts           for each series, the unfinished inputs, each with the share of its work that is missing.
    chunk_sizes     for each series, the chunk size with which the run was started; a run keeps it, because another one
                    would change the last bits of gradients.
    """

    covered: dict[tuple[int, str], list[range]]
    parts: dict[str, list[tuple[Example, float]]]
    chunk_sizes: dict[str, int]


class Study:
    """A config with its model and inputs, checked and ready to run.

    A series is one norm with one method; `settings` has the settings of each series by its name in the store.

    ids         the id of each input: its position in the whole data set.
    recipe      a function and its arguments with which another process loads a classifier that cannot be sent.
    """

    def __init__(
        self,
        config: StudyConfig,
        classifier: Classifier,
        images: npt.NDArray[Any],
        labels: npt.NDArray[np.int64] | None,
        ids: Sequence[int],
        *,
        class_names: Sequence[str] | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        self.recipe = recipe
        self._contexts: dict[Any, WorkerContext] = {}
        self.dropped: list[str] = []  # what was damaged in the store when it was opened, and will be computed again
        self.config = config
        self.class_names = class_names
        self.classifier = classifier
        self.settings = {series: config.settings(*measured) for series, measured in config.series().items()}
        box_of(config.region, classifier.bounds)
        self.examples = prepare(
            classifier,
            images,
            targets=parse_targets(config.targets, len(ids)),
            labels=None if labels is None else labels.tolist(),
            ids=ids,
            seed=config.seed,
        )
        if config.skip_misclassified:
            self.examples = [example for example in self.examples if example.label in (None, example.predicted)]
            if not self.examples:
                raise InputError("all inputs are misclassified, and misclassified inputs are skipped: nothing is left")

    def open_store(self, folder: Path, *, fresh: bool = False, command: str | None = None) -> Store:
        """Create the run directory, or open it if it contains this study or one that can be extended to it.

        More inputs and a larger budget extend a run; any other change of settings is refused.

        fresh       delete the run that the folder contains, if any, and create a new one.
        command     the text of the command that makes the run, which is stored.
        """
        path = folder / FILE_NAME
        if fresh and path.exists():
            lock = RunLock(folder)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            lock.release()
        if not path.exists():
            meta = {
                "config": asdict(self.config), "used": self._used(), "versions": versions(), "command": command,
                "class_names": None if self.class_names is None else list(self.class_names),
                "inputs": len(self.examples),
                **kept_of_estimators(self.settings),
            }  # fmt: skip
            return Store.create(folder, meta)
        store = Store.open(folder, write=True)
        try:
            self.dropped = store.drop_corrupt_rows()
            kept, now = store.meta, json.loads(json.dumps(asdict(self.config)))
            growth = Growth.between(kept["config"], now)
            if growth.refused:
                raise StoreError(
                    f"{folder} holds a run with other settings ({'; '.join(growth.refused)}); choose another --out, or "
                    "--fresh to start over"
                )
            if growth.config != kept["config"]:
                rows = kept["config"]["inputs"]
                old = None if rows == "all" else set(map(int, rows.split(",")))
                new = [example for example in self.examples if old is not None and example.input_id not in old]
                grow(store, growth.config, len(new))
        except BaseException:
            store.close()
            raise
        return store

    def _used(self) -> dict[str, Any]:
        """Values that the config leaves to the method (radius) or the model (box, outputs, preprocessing)."""
        one = next(iter(self.settings.values()))
        constants = {
            name: None if values is None else values.tolist()
            for name, values in (("mean", self.classifier.mean), ("std", self.classifier.std))
        }
        return {
            "radius": one.radius,
            "bounds": self.classifier.bounds,
            "outputs": self.classifier.outputs,
            **constants,
            "transform": None if self.classifier.transform is None else _identity(self.classifier.transform),
        }

    def missing(self, store: Store) -> Missing:
        """The work that is not stored yet."""
        covered = store.covered()
        parts: dict[str, list[tuple[Example, float]]] = {}
        for norm, rule in self.settings.items():
            there = (
                (example, min(1.0, sum(map(len, covered.get((example.input_id, norm), ()))) / rule.blocks))
                for example in self.examples
            )
            parts[norm] = [(example, 1.0 - share) for example, share in there if share < 1.0]
        return Missing(covered, parts, dict(store.meta.get("chunk_sizes") or {}))

    def points(self, missing: Missing) -> int:
        """The largest number of points that are still to be drawn."""
        dim = self.examples[0].x.numel()
        return sum(
            round(sum(share for _, share in parts) * self._max_work(norm, dim)) for norm, parts in missing.parts.items()
        )

    def _max_work(self, norm: str, dim: int) -> int:
        return self.settings[norm].estimator.max_work(self.settings[norm], dim)

    def costs(
        self,
        missing: Missing,
        *,
        chunk_size: int | None = None,
        workers: int | None = None,
        probe_seconds: float = PROBE_SECONDS,
    ) -> dict[str, Estimate]:
        """The largest cost of the missing work of each series, from a measurement of about `probe_seconds` each."""
        found = {}
        context = self._context(missing, chunk_size, workers)
        for norm, parts in missing.parts.items():
            if parts:
                whole = estimate_for(context.prepared(norm), [example for example, _ in parts], probe_seconds)
                share = sum(share for _, share in parts) / len(parts)
                found[norm] = replace(
                    whole, seconds=whole.seconds * share, gradients=round(whole.gradients * share),
                    points=round(whole.points * share), inputs=len(parts) * share,
                )  # fmt: skip
        return found

    def run(
        self,
        store: Store,
        *,
        executor: Executor | None = None,
        chunk_size: int | None = None,
        workers: int | None = None,
        shard_seconds: float = SHARD_SECONDS,
        costs: Mapping[str, Estimate] | None = None,
        on_points: Callable[[int], None] | None = None,
        on_shard: Callable[[str, float], None] | None = None,
        stop: Stop | None = None,
        only: Sequence[Example] | None = None,
        most_seconds: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Compute the missing work and store every shard when it is finished.

        costs           for each series, the cost of its missing work; the work is divided into shards by these costs.
                        By default the costs are measured first. A series without an entry is not computed.
        on_points       called with the amount of work that was done since the last call, in points.
        on_shard        called for every finished shard with its series and its number of inputs, which is a fraction
                        where the shard has some of the blocks of an input.
        stop            no further shard is begun once `stop.asked` is true.
        only            compute these examples only.
        most_seconds    the seconds that an input may take in each series; by default the budget of the config is
                        divided equally among all inputs and series.

        Returns the seconds per input in each series of which something was computed.
        """
        executor = executor or InProcess()
        inside = isinstance(executor, InProcess)
        missing = self.missing(store)
        took: dict[str, list[float]] = {}  # seconds and inputs of each series
        if any(missing.parts.values()):
            ids = {example.input_id: example for parts in missing.parts.values() for example, _ in parts}
            store.append_pictures(self._pictures(store, ids))
            context = self._context(missing, chunk_size, workers)
            context.on_points = on_points if inside else None
            context.shares = self._budget_shares(executor, most_seconds)
            if not missing.chunk_sizes:
                store.remember("chunk_sizes", context.chunk_sizes)
            costs = costs or self.costs(missing, chunk_size=chunk_size, workers=workers)
            # A short run has shorter shards, so that there are results to look at, and moments to stop, on the way.
            whole = sum(cost.seconds for cost in costs.values())
            shard_seconds = min(shard_seconds, max(LEAST_SHARD_SECONDS, whole / SHARDS_AT_LEAST))
            # An estimate is for all threads of this process together; a worker in another process has one thread.
            each = {norm: cost.seconds / cost.inputs * (1 if inside else cost.workers) for norm, cost in costs.items()}
            shards = plan(
                self.examples if only is None else only, {norm: self.settings[norm] for norm in each},
                {norm: context.prepared(norm).splits for norm in each}, missing.covered,
                chunk_sizes=context.chunk_sizes, seconds_per_input=each, shard_seconds=shard_seconds,
                threads=context.threads if inside else 1,
            )  # fmt: skip
            fitted = time.monotonic()
            for done in executor.run(context, _given_out(store, shards, stop)):
                store.append(done.parts, shard=done.shard.number, seconds=done.seconds, worker=done.worker)
                if on_points is not None and not inside:
                    on_points(self._points_of(done.shard))
                inputs = sum(
                    1.0 if task.blocks is None else len(task.blocks) / self.settings[done.shard.norm].blocks
                    for task in done.shard.tasks
                )
                spent = took.setdefault(done.shard.norm, [0.0, 0.0])
                spent[0], spent[1] = spent[0] + done.seconds, spent[1] + inputs
                if on_shard is not None:
                    on_shard(done.shard.norm, inputs)
                if time.monotonic() - fitted > SECONDS_BETWEEN_FITS:
                    fit_new(store, self.config)
                    fitted = time.monotonic()
        fit_new(store, self.config)
        return {series: seconds / inputs for series, (seconds, inputs) in took.items()}

    def _context(self, missing: Missing, chunk_size: int | None, workers: int | None) -> WorkerContext:
        """The worker context of this process, made once for the cost estimate and the run."""
        key = (chunk_size, workers, tuple(missing.chunk_sizes.items()))
        if self._contexts.get(key) is None:
            given = dict.fromkeys(self.settings, chunk_size) if chunk_size else missing.chunk_sizes
            made = WorkerContext(
                self.classifier, self.settings, self.examples[:CHECKED_INPUTS], given,
                checked_workers(self.classifier.device, workers), recipe=self.recipe,
            )  # fmt: skip
            made.chunk_sizes = {norm: made.prepared(norm).chunk_size for norm in self.settings}
            self._contexts = {key: made}
        return self._contexts[key]

    def _budget_shares(self, executor: Executor, most_seconds: Mapping[str, float] | None) -> dict[str, Budget]:
        """The budget of one input in each series; empty without a budget."""
        if most_seconds is not None:
            return {norm: Budget(seconds=seconds) for norm, seconds in most_seconds.items()}
        if self.config.budget is None:
            return {}
        budget, count = Budget.parse(self.config.budget), len(self.examples) * len(self.settings)
        share = Budget(gradients=budget.gradients / count, seconds=budget.seconds * executor.slots / count)
        return dict.fromkeys(self.settings, share)

    def _points_of(self, shard: Shard) -> int:
        rule = self.settings[shard.norm]
        whole = self._max_work(shard.norm, self.examples[0].x.numel())
        return sum(whole if task.blocks is None else len(task.blocks) * rule.block_size for task in shard.tasks)

    def _pictures(self, store: Store, examples: dict[int, Example]) -> dict[int, Picture]:
        stored = store.pictured()
        bounds = self.classifier.bounds
        made = {
            i: thumbnail(example.x.detach().cpu().float().numpy(), bounds)
            for i, example in examples.items()
            if i not in stored
        }
        return {i: picture for i, picture in made.items() if picture is not None}


def _given_out(store: Store, shards: Sequence[Shard], stop: Stop | None) -> Iterator[Shard]:
    """The shards in order, each recorded in the store when it is taken, until a stop is requested."""
    for shard in shards:
        if stop is not None and stop.asked:
            return
        yield replace(shard, number=store.began(shard.norm, shard.content))
