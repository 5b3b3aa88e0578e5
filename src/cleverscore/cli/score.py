"""The command `score`: check everything, then compute into the run directory, then print."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cleverscore.cli.results import note

if TYPE_CHECKING:
    from cleverscore.brackets.masking import Sign
    from cleverscore.brackets.presets import Preset
    from cleverscore.inputs.examples import Example
    from cleverscore.loading.sources import Source
    from cleverscore.models.classifier import Classifier
    from cleverscore.runs.add_bounds import Bounds
    from cleverscore.runs.shards import Executor
    from cleverscore.runs.store import Store
    from cleverscore.runs.study import Study
    from cleverscore.scores.score import Scores

INTERRUPTED = 130
FEW_RIGHT = 0.5  # a warning is printed if a smaller share of the inputs is classified correctly


def run_score(
    *, model: str, data: str, norms: tuple[str, ...], targets: str, index: str | None, limit: int | str | None,
    skip_misclassified: bool, chunk_size: int | None, workers: int | None, out: Path | None, fresh: bool,
    preset: str = "quick", blocks: int | None = None, block_size: int | None = None, tolerance: float | None = None,
    bounds: str | None = None, mean: str | None = None, std: str | None = None, outputs: str | None = None,
    device: str | None = None, allow_pickle: bool = False, correct_only: bool = False,
    attacks: tuple[str, ...] = (), certificates: tuple[str, ...] = (), executor: str = "local",
    processes: int | None = None, ray_address: str | None = None, ray_gpus: float | None = None,
    shard_seconds: float = 20.0, radii: tuple[str, ...] = (), methods: tuple[str, ...] = (), **settings: Any,
) -> Scores:  # fmt: skip
    """Score a model on data into a run directory, and print the table; arguments are the options of the command.

    Returns the scores of the first method. Ctrl-C ends the program.
    """
    began = time.monotonic()
    try:
        from cleverscore.brackets.presets import preset_of
        from cleverscore.runs.add_bounds import Bounds

        plan = preset_of(
            preset, methods=methods or None, blocks=blocks, block_size=block_size, tolerance=tolerance,
            attacks=_given(attacks),
        )  # fmt: skip
        options = classifier_options(bounds, mean, std, outputs, device, allow_pickle)
        study = _study(
            model, data, options, norms=norms, targets=targets, index=index, correct_only=correct_only,
            limit=_limit(limit, plan, index), skip_misclassified=skip_misclassified, radii=radii, plan=plan,
            method=",".join(dict.fromkeys(plan.methods)), blocks=plan.blocks, block_size=plan.block_size,
            tolerance=plan.tolerance,
            **settings,
        )  # fmt: skip
        proofs = _given(certificates)
        wanted = Bounds(tuple(plan.attacks), _possible(study, plan.certificates) if proofs is None else proofs)
        wanted.check(study)
    except KeyboardInterrupt:
        note("\ninterrupted before anything was computed")
        sys.exit(INTERRUPTED)
    if wanted.attacks and study.classifier.bounds is None:
        unit = all(float(example.x.min()) >= 0.0 and float(example.x.max()) <= 1.0 for example in study.examples)
        advice = "; these inputs lie between 0 and 1: add --bounds 0,1" if unit else ""
        note(f"no --bounds given: scores and attacks count points outside the range of valid inputs too{advice}")
    folder = out or Path("runs") / f"{_slug(model)}-{study.config.short_hash()}"
    with study.open_store(folder, fresh=fresh, command=_command()) as store:
        for text in study.dropped:
            note(f"damaged and dropped, to be computed again: {text}")
        wanted = wanted.with_earlier(store)
        if wanted:
            wanted.remember(store, complete=False)
        _remember_selection(store, correct_only)
        threads = workers if executor == "local" else None
        with _executor(executor, processes, workers, ray_address, ray_gpus) as place:
            told, left = _compute(
                study, store, wanted, place, chunk_size=chunk_size, threads=threads, shard_seconds=shard_seconds,
                preset=preset, began=began,
            )  # fmt: skip
        scores = _print(study, store, wanted, told)
        if left:
            note(
                f"the budget of {study.config.budget} is used up: {len(study.examples) - left} of "
                f"{len(study.examples)} inputs are complete; the same command goes on with the other {left}, with a "
                "larger --budget if you like"
            )
        if proofs is None and wanted.attacks and not wanted.certificates:
            _suggest_certificates(study)
    note(f"\n{time.monotonic() - began:.1f} s; kept in {folder}")
    return scores


def _study(
    model: str, data: str, options: dict[str, Any], *, norms: tuple[str, ...], targets: str, index: str | None,
    limit: int | None, correct_only: bool, skip_misclassified: bool, radii: tuple[str, ...], plan: Preset,
    region: str | None = None, **settings: Any,
) -> Study:  # fmt: skip
    """The study that the options describe; prints a note on anything that looks wrong."""
    from cleverscore.inputs.radius import box_width
    from cleverscore.loading.dataset import open_data
    from cleverscore.loading.models import load_model
    from cleverscore.loading.row_selection import correct_rows, rows_of
    from cleverscore.runs.results import StudyConfig, resolved_radii
    from cleverscore.runs.study import Study, fingerprint_model

    classifier = load_model(model, **options)
    source = open_data(data, classifier)
    rows = rows_of(index, source.count)
    rows = correct_rows(source, classifier, rows, limit) if correct_only else rows[:limit]
    images = source.read(rows)
    norms = tuple(dict.fromkeys(norms)) or ("2",)
    config = StudyConfig(
        model=model,
        data=data,
        norms=norms,
        targets=targets,
        model_fingerprint=fingerprint_model(classifier),
        data_fingerprint=source.fingerprint(),
        inputs="all" if rows == list(range(source.count)) else ",".join(map(str, rows)),
        skip_misclassified=skip_misclassified,
        radius=resolved_radii(radii, norms, plan.radius, box_width(classifier.bounds, images.min(), images.max())),
        region=plan.region_for(classifier.bounds) if region is None else region,
        **settings,
    )
    labels = None if source.labels is None else source.labels[rows]
    class_names = classifier.class_names or source.class_names
    recipe = (load_model, (model,), options)
    study = Study(config, classifier, images, labels, rows, class_names=class_names, recipe=recipe)
    for text in _doubts(study, source):
        note(f"warning: {text}")
    for names, unused in _unused_options(study).items():
        note(f"{', '.join(unused)} have no meaning for --method {names}: they are not used")
    return study


def _unused_options(study: Study) -> dict[str, list[str]]:
    """The given options that no method of the run uses, by the names of the methods; empty if there are none."""
    estimators = {settings.estimator.name: settings.estimator for settings in study.settings.values()}
    common = set.intersection(*(set(estimator.unused) for estimator in estimators.values()))
    given = [f"--{name.replace('_', '-')}" for name in sorted(common) if _was_given(name)]
    return {" and ".join(estimators): given} if given else {}


class Limit(click.ParamType[int | str]):
    """A command-line value: a number of inputs, or the word "all"."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse the value: a number, or "all"."""
        return "all" if value == "all" else click.IntRange(min=1).convert(value, param, ctx)


def _limit(limit: int | str | None, plan: Preset, index: str | None) -> int | None:
    """The largest number of inputs, None for all: that of --limit; else that of the preset, or all rows of --index."""
    if limit is None:
        return plan.inputs if index is None else None
    return None if isinstance(limit, str) else limit


def _remember_selection(store: Store, correct_only: bool) -> None:
    """Store whether inputs were chosen by --correct-only. Raises a StoreError if earlier ones were chosen otherwise."""
    from cleverscore.errors import StoreError

    meta, words = store.meta, "inputs that the model classifies correctly, no others"
    if store.done() and bool(meta.get("selection")) != correct_only:
        now = "with" if correct_only else "without"
        raise StoreError(
            f"{store.folder} holds a run whose inputs were chosen otherwise ({now} --correct-only now): its accuracy "
            "would mean nothing; choose another --out, or --fresh to start over"
        )
    if correct_only:
        store.remember("selection", words)


def _given(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The attacks or certificates given as options, () for "none"; None without such options."""
    return tuple(name for name in names if name != "none") if names else None


def _possible(study: Study, certificates: tuple[str, ...]) -> tuple[str, ...]:
    """The preset's certificates that the layers of the network allow; prints why others are left out."""
    from cleverscore.certificates.certify import why_not

    found = {name: why_not(study.classifier, study.examples[0].x, name) for name in certificates}
    for name, reason in found.items():
        if reason is not None:
            note(f"no certificates by {name}: {reason}")
    return tuple(name for name, reason in found.items() if reason is None)


def _suggest_certificates(study: Study) -> None:
    """Print a note that --certify crown can prove distances, if the layers of the network allow it."""
    from cleverscore.certificates.certify import why_not

    if why_not(study.classifier, study.examples[0].x, "crown") is None:
        note("nothing is certified: the same command with --certify crown adds proved distances and keeps the rest")


def _doubts(study: Study, source: Source) -> list[str]:
    """Warnings, as texts, if data and model do not seem to belong together: units, accuracy, numbers of classes."""
    from cleverscore.inputs.radius import LARGEST_USUAL_INPUT, looks_like_bytes
    from cleverscore.reporting.inspection import near_chance, normalised_hint

    found = []
    classifier = study.classifier
    low = min(float(example.x.min()) for example in study.examples)
    high = max(float(example.x.max()) for example in study.examples)
    if classifier.bounds is None and looks_like_bytes(low, high):
        found.append(
            f"inputs reach from {low:g} to {high:g} and look like pixels: give --bounds 0,255, so that attacks stay "
            "valid, or divide them by 255 if the model was trained so; scores are in the units of the inputs"
        )
    elif classifier.bounds is None and max(-low, high) > LARGEST_USUAL_INPUT:
        found.append(f"inputs reach from {low:g} to {high:g}, and there are no --bounds: scores are in these units")
    units = normalised_hint(classifier, study.examples[0].x[None], low, high)
    if units is not None:
        found.append(units)
    labelled = [example for example in study.examples if example.label is not None]
    right = sum(example.label == example.predicted for example in labelled)
    classes = classifier(study.examples[0].x[None]).shape[1]
    normalisation = _missing_normalisation(classifier, labelled)
    if normalisation is not None:
        found.append(f"only {right} of {len(labelled)} inputs are classified correctly; {normalisation}")
    elif near_chance(right, len(labelled), classes):
        found.append(
            f"only {right} of {len(labelled)} inputs are classified correctly, which guessing among {classes} classes "
            "does as well: are the weights loaded, is preprocessing missing (--mean, --std), are the inputs in other "
            "units, or do the labels count from another number? Try inspect"
        )
    elif right < FEW_RIGHT * len(labelled):
        found.append(
            f"only {right} of {len(labelled)} inputs are classified correctly: is preprocessing missing (--mean, "
            "--std), are the inputs in other units, or do the labels count from another number? Try inspect"
        )
    names = source.class_names
    if names and classifier.class_names is None and classes != len(names):
        found.append(
            f"the data has {len(names)} named classes and the model {classes} without names: labels are numbered "
            f"in sorted order ({names[0]} = 0, ...); name classes by their numbers if that is not the model's order"
        )
    return found


def _missing_normalisation(classifier: Classifier, labelled: list[Example]) -> str | None:
    """A remark if a usual normalisation would make the model much more accurate on some of the labelled inputs."""
    import numpy as np
    import torch

    from cleverscore.reporting.inspection import TRIED_INPUTS, missing_normalisation

    few = labelled[:: -(-len(labelled) // TRIED_INPUTS) or 1]
    if not few:
        return None
    labels = np.array([example.label for example in few], np.int64)
    return missing_normalisation(classifier, torch.stack([example.x for example in few]), labels)


def _compute(
    study: Study, store: Store, wanted: Bounds, place: Executor, *, chunk_size: int | None, threads: int | None,
    shard_seconds: float, preset: str, began: float,
) -> tuple[tuple[Sign, ...], int]:  # fmt: skip
    """Compute the scores, and the attacks and certificates in `wanted`, that the store lacks. Ctrl-C ends the program.

    place           where shards of work are computed.
    threads         number of threads; None for one per core.
    preset          the name of the preset, for the advice on shorter runs.
    began           when the command began, in seconds of `time.monotonic`.

    Returns the printed signs of masked gradients, and the number of inputs that the time budget did not allow.
    """
    from cleverscore.estimators.budget import Budget
    from cleverscore.progress import progress
    from cleverscore.runs.add_bounds import probed_signs, run_bounds
    from cleverscore.runs.forecast import LONG_SECONDS, UNITS_PER_SECOND, plan_work, shorter_options
    from cleverscore.runs.signals import stopping
    from cleverscore.runs.time_budget import TimeBudget, run_within

    missing = study.missing(store)
    told: tuple[Sign, ...] = ()
    left = 0
    in_all = len(study.examples) * len(study.settings)
    if missing.covered:
        kept = in_all - sum(map(len, missing.parts.values()))
        note(f"resuming {store.folder}: {kept} of {in_all} scores are there already")
    ask = f"\nfinishing the work that was begun (up to about {shard_seconds:g} s); Ctrl-C again stops at once"
    run = partial(study.run, store, executor=place, chunk_size=chunk_size, workers=threads, shard_seconds=shard_seconds)
    budget = TimeBudget(Budget.parse(study.config.budget).seconds, began)
    activity = next(iter(study.settings.values())).estimator.activity
    with stopping(lambda: note(ask)) as stop:
        try:
            told = probed_signs(study, store, most_seconds=budget.probes) if any(missing.parts.values()) else ()
            for sign in told:
                note(f"warning: {sign.kind}: {sign}")
            if budget.limited:
                note(f"to do: as many of {len(study.examples)} inputs as the budget of {study.config.budget} allows")
                with progress(round(UNITS_PER_SECOND * budget.left), "computing", lines=True) as on_units:
                    left = len(
                        run_within(
                            budget, study, store, wanted, run, stop, slots=place.slots,
                            on_group=lambda seconds: on_units(round(UNITS_PER_SECOND * seconds)),
                        )
                    )  # fmt: skip
            else:
                work = plan_work(
                    study, store, wanted, missing, run, place, stop, chunk_size=chunk_size, workers=threads, began=began
                )
                if work.words:
                    note(f"to do: {work.words}")
                if work.forecast.seconds > LONG_SECONDS:
                    note(f"shorter: {shorter_options(study, preset)}")
                with progress(work.units, activity, lines=True) as on_units:
                    run(
                        costs=work.costs, stop=stop,
                        on_shard=lambda series, inputs: on_units(work.units_of(series, inputs)),
                    )  # fmt: skip
                run_bounds(
                    study, store, wanted, on_inputs=lambda name, done, of: note(f"{name}: {done} of {of}"), stop=stop
                )
            broken_off = stop.asked and (bool(wanted) or any(study.missing(store).parts.values()))
        except KeyboardInterrupt:
            broken_off = True
    if broken_off:
        bounds_left = " and not all attacks and certificates" if wanted else ""
        note(
            f"\ninterrupted; {len(store.done())} of {in_all} scores{bounds_left} are complete in {store.folder}; the "
            "same command resumes"
        )
        sys.exit(INTERRUPTED)
    if wanted:
        wanted.remember(store, complete=not left)
    return told, left


def _print(study: Study, store: Store, wanted: Bounds, told: tuple[Sign, ...]) -> Scores:
    """Print the table on stdout, and signs of masking that are not in `told` on stderr; signs are stored in the run."""
    from cleverscore.runs.add_bounds import stored_signs
    from cleverscore.runs.results import stored_bracket, stored_scores

    scores = stored_scores(store)
    bracket = stored_bracket(store, scores)
    click.echo(str(scores if bracket is None else bracket))
    signs = stored_signs(study, store, scores)
    store.remember("signs", [{"kind": sign.kind, "text": str(sign)} for sign in signs])
    if wanted:  # attacks or certificates may have been added: the command that asks for them is kept
        store.remember("command", _command())
    for sign in signs:
        if sign not in told:
            note(f"warning: {sign.kind}: {sign}")
    return scores


@contextmanager
def _executor(
    name: str, processes: int | None, workers: int | None, address: str | None, gpus: float | None
) -> Iterator[Executor]:
    """The executor of the shards: threads, processes or Ray."""
    from cleverscore.runs.local_executor import InProcess, Processes

    if name == "ray":
        if processes is not None:
            raise click.UsageError("--processes is for --executor local; with ray say how many --workers")
        from cleverscore.runs.ray_executor import Ray

        cluster = Ray(address, workers=workers, num_gpus=gpus)
        note(f"Ray: {cluster.slots} workers")
        try:
            yield cluster
        finally:
            cluster.close()
        return
    if address is not None or gpus is not None:
        raise click.UsageError("--ray-address and --ray-gpus are for --executor ray")
    yield InProcess() if processes is None else Processes(processes)


def classifier_options(
    bounds: str | None, mean: str | None, std: str | None, outputs: str | None, device: str | None, allow_pickle: bool
) -> dict[str, Any]:
    """The options about the model, as keyword arguments of `load_model`."""
    box = _numbers(bounds, "--bounds")
    if box is not None and len(box) != 2:
        raise click.BadParameter(f"{bounds!r} must be two numbers such as 0,1", param_hint="--bounds")
    return {
        "bounds": None if box is None else tuple(box),
        "mean": _numbers(mean, "--mean"),
        "std": _numbers(std, "--std"),
        "outputs": outputs,
        "device": device,
        "allow_pickle": allow_pickle,
    }


def _numbers(text: str | None, name: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0,1", param_hint=name) from None


def _was_given(name: str) -> bool:
    """Whether the user gave an option of the current command on the command line."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _command() -> str | None:
    """The command line as the user typed it; None if the function was called from another program."""
    context = click.get_current_context(silent=True)
    return None if context is None else (context.find_root().obj or {}).get("command")


def _slug(model: str) -> str:
    name = model.split("?")[0].rsplit(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-") or "model"
