"""The command line: parse, call, print. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cleverscore import __version__
from cleverscore.cli_results import compare, gate, note, report
from cleverscore.errors import CleverError

if TYPE_CHECKING:
    from cleverscore.classifier import Classifier
    from cleverscore.run.shards import Executor
    from cleverscore.run.study import Study
    from cleverscore.score import Scores

INTERRUPTED = 130
FEW_RIGHT = 0.5  # share of correct inputs below which a word is due
UNUSUAL_INPUT = 20.0  # inputs without bounds are seldom larger: pixels from 0 to 255 are


def main() -> None:
    """Run the program; every error a user can cause is one sentence and exit code 2."""
    warnings.showwarning = _show_warning
    try:
        program.main(standalone_mode=False, obj={"command": shlex.join(["cleverscore", *sys.argv[1:]])})
    except CleverError as error:
        note(f"error: {error}")
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(0)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # Libraries' own deprecation notices are not for the people who run this program.
    if not issubclass(category, (DeprecationWarning, FutureWarning)):
        note(f"warning: {message}")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, package_name="cleverscore")
def program() -> None:
    """CLEVER: how far an input must be moved before a neural network changes its mind, without attacking it.

    Start with:  cleverscore demo
    """


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say how a model is to be understood."""
    for option in reversed(
        (
            click.option("--bounds", metavar="LOW,HIGH", help="Smallest and largest valid input value, such as 0,1."),
            click.option(
                "--mean", metavar="M[,M...]", help="Subtracted from the inputs, one value or one per channel."
            ),
            click.option("--std", metavar="S[,S...]", help="Inputs are divided by this, one value or one per channel."),
            click.option("--outputs", type=click.Choice(["logits", "probabilities"]), help="What the model gives."),
            click.option("--device", help="Where to compute, such as cuda or cpu.  [default: where the model is]"),
            click.option(
                "--allow-pickle", is_flag=True, help="Load pickled models, which can run any code: if you trust them."
            ),
        )
    ):
        command = option(command)
    return command


def _numbers(text: str | None, name: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0,1", param_hint=name) from None


def _classifier_options(
    bounds: str | None, mean: str | None, std: str | None, outputs: str | None, device: str | None, allow_pickle: bool
) -> dict[str, Any]:
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


@program.command()
@click.argument("model")
@click.argument("data")
@click.option(
    "--norm", "norms", multiple=True, metavar="P", help="Norm: 1, 2, inf or any p >= 1; repeatable.  [default: 2]"
)
@click.option(
    "--targets",
    default="untargeted",
    show_default=True,
    help="untargeted, top:N (the N likeliest), runner_up, least_likely, random, all, or classes such as 3,5.",
)
@click.option(
    "--radius",
    "radii",
    multiple=True,
    metavar="[NORM=]X",
    help="Radius of the ball that is sampled, for all norms or, as in inf=0.3, for one; repeatable.  [default: 5, "
    "released-code: 3]",
)
@click.option("--blocks", type=int, default=500, show_default=True, help="Number of block maxima (N_b).")
@click.option("--block-size", type=int, default=1024, show_default=True, help="Gradients per block (N_s).")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same scores.")
@click.option(
    "--method",
    default="paper",
    show_default=True,
    help="paper, sharp (ascent and radial profile), or released-code (the authors' program).",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="SHARE",
    help="Stop where an interval is within this share of the score (0.05), and give no more gradients to classes that "
    "cannot be the nearest; 0 does only the latter.",
)
@click.option("--budget", metavar="AMOUNT", help="At most so many gradients (2000000) or so much time (90s, 10m, 2h).")
@click.option(
    "--inside",
    type=click.Choice(["ball", "clip"]),
    help="Sample the whole ball, or clip points to the input box.  [default: ball, released-code: clip]",
)
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME",
    help="Attack beside the score: cw, ddn, fmn, ead, ifgsm, facets, or best for the norm; NAME:strong or NAME:quick "
    "for another effort; repeatable. Can be added to a run later.",
)
@click.option(
    "--certify",
    "certificates",
    multiple=True,
    metavar="METHOD",
    help="Certify beside the score: crown, local-lipschitz, norm-product, or auto-lirpa where it is installed; "
    "repeatable. Can be added to a run later.",
)
@click.option("--index", metavar="ROWS", help="Rows of the data, such as 3,17,40-49.")
@click.option("--limit", type=click.IntRange(min=1), help="Score the first inputs only.")
@click.option("--correct-only", is_flag=True, help="Take inputs that the model gets right; --limit counts only those.")
@click.option("--skip-misclassified", is_flag=True, help="Leave misclassified inputs out, as the paper does.")
@click.option("--chunk-size", type=int, help="Points per forward pass.  [default: what memory allows]")
@click.option("--workers", type=int, help="Threads, or actors with --executor ray.  [default: one per core]")
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Compute on this machine or on a Ray cluster; the scores are the same.",
)
@click.option("--processes", type=int, metavar="N", help="Compute in N processes of one thread instead of threads.")
@click.option(
    "--ray-address", metavar="ADDRESS", help="Cluster to use, such as auto or HOST:6379.  [default: a new one]"
)
@click.option("--ray-gpus", type=float, metavar="N", help="GPUs per actor.  [default: 1 where the cluster has any]")
@click.option(
    "--shard-seconds", type=float, default=20.0, show_default=True, help="About how long a piece of work takes."
)
@click.option("--out", type=click.Path(path_type=Path), help="Run directory.  [default: runs/MODEL-HASH]")
@click.option("--fresh", is_flag=True, help="Start over if the run directory holds a run.")
@_model_options
def score(**options: Any) -> None:
    """Score MODEL on DATA. The same command again resumes.

    MODEL is zoo:NAME, package.module:factory[?weights=file.safetensors], an ONNX, TorchScript or torch.export file, or
    a Hugging Face folder. DATA is zoo:mnist, an npz file with arrays x and y, an npy, safetensors or csv file
    (file.csv?label=COLUMN), a folder of pictures, a saved Hugging Face data set, mnist:FOLDER or cifar10:FOLDER.
    """
    run_score(**options)


def run_score(
    *, model: str, data: str, norms: tuple[str, ...], targets: str, index: str | None, limit: int | None,
    skip_misclassified: bool, chunk_size: int | None, workers: int | None, out: Path | None, fresh: bool,
    bounds: str | None = None, mean: str | None = None, std: str | None = None, outputs: str | None = None,
    device: str | None = None, allow_pickle: bool = False, correct_only: bool = False,
    attacks: tuple[str, ...] = (), certificates: tuple[str, ...] = (), executor: str = "local",
    processes: int | None = None, ray_address: str | None = None, ray_gpus: float | None = None,
    shard_seconds: float = 20.0, radii: tuple[str, ...] = (), **settings: Any,
) -> Scores:  # fmt: skip
    """What `score` does: check everything, then compute into the run directory, then print."""
    from cleverscore.cost import total
    from cleverscore.load.data import open_data
    from cleverscore.load.models import load_model
    from cleverscore.load.selection import correct_rows, rows_of
    from cleverscore.progress import progress
    from cleverscore.run.bounding import Bounds, run_bounds, stored_signs
    from cleverscore.run.reading import parse_radii, stored_bracket
    from cleverscore.run.signals import stopping
    from cleverscore.run.study import Study, StudyConfig, fingerprint_model, stored_scores

    options = _classifier_options(bounds, mean, std, outputs, device, allow_pickle)
    classifier = load_model(model, **options)
    source = open_data(data, classifier)
    rows = rows_of(index, source.count)
    rows = correct_rows(source, classifier, rows, limit) if correct_only else rows[:limit]
    config = StudyConfig(
        model=model,
        data=data,
        norms=tuple(dict.fromkeys(norms)) or ("2",),
        targets=targets,
        model_fingerprint=fingerprint_model(classifier),
        data_fingerprint=source.fingerprint(),
        inputs="all" if rows == list(range(source.count)) else ",".join(map(str, rows)),
        skip_misclassified=skip_misclassified,
        radius=parse_radii(radii),
        **settings,
    )
    labels = None if source.labels is None else source.labels[rows]
    class_names = classifier.class_names or source.class_names
    recipe = (load_model, (model,), options)
    study = Study(config, classifier, source.read(rows), labels, rows, class_names=class_names, recipe=recipe)
    for text in _doubts(study, classifier):
        note(f"warning: {text}")
    if source.class_names and classifier.class_names is None:
        classes = classifier(study.subjects[0].x[None]).shape[1]
        if classes != len(source.class_names):
            note(
                f"warning: the data has {len(source.class_names)} named classes and the model {classes} without names: "
                f"labels are numbered in sorted order ({source.class_names[0]} = 0, ...); name classes by their "
                "numbers if that is not the model's order"
            )
    if config.method == "sharp" and any(map(_was_given, ("blocks", "block_size"))):
        note("--blocks and --block-size have no meaning for --method sharp, which climbs: they are not used")
    bounds_wanted = Bounds(attacks, certificates)
    bounds_wanted.check(study)
    if attacks and classifier.bounds is None:
        note("no --bounds given: attacks may leave the range of valid inputs")
    folder = out or Path("runs") / f"{_slug(model)}-{config.short_hash()}"
    with study.open_store(folder, fresh=fresh, command=_command()) as store:
        for text in study.mended:
            note(f"damaged and dropped, to be computed again: {text}")
        if attacks or certificates:
            store.remember("bounds", {"asked": [*attacks, *certificates], "complete": False})
        if correct_only:
            store.remember("selection", "inputs that the model classifies correctly, no others")
        missing = study.missing(store)
        scores_in_all = len(study.subjects) * len(study.settings)
        kept = scores_in_all - sum(map(len, missing.parts.values()))
        if missing.covered:
            note(f"resuming {folder}: {kept} of {scores_in_all} scores are there already")
        threads = workers if executor == "local" else None
        costs = study.costs(missing, chunk_size=chunk_size, workers=threads)
        if costs:
            most = "at most " if config.tolerance is not None or config.budget else ""
            note(
                f"to do: {most}{total(list(costs.values()))}"
                + (f"; the budget is {config.budget}" if config.budget else "")
            )
        began = time.perf_counter()
        ask = f"\nfinishing the work that was begun (up to about {shard_seconds:g} s); Ctrl-C again stops at once"
        with (
            stopping(lambda: note(ask)) as stop,
            _executor(executor, processes, workers, ray_address, ray_gpus) as place,
        ):
            try:
                activity = next(iter(study.settings.values())).activity
                with progress(study.points(missing), activity, lines=True) as on_points:
                    study.run(
                        store, executor=place, chunk_size=chunk_size, workers=threads, shard_seconds=shard_seconds,
                        costs=costs, on_points=on_points, stop=stop,
                    )  # fmt: skip
                run_bounds(
                    study, store, bounds_wanted, on_inputs=lambda name, count: note(f"{name}: {count} more done"),
                    stop=stop,
                )  # fmt: skip
                broken_off = stop.asked and bool(attacks or certificates or any(study.missing(store).parts.values()))
                if not broken_off and (attacks or certificates):
                    store.remember("bounds", {"asked": [*attacks, *certificates], "complete": True})
            except KeyboardInterrupt:
                broken_off = True
            if broken_off:
                bounds_left = " and not all attacks and certificates" if attacks or certificates else ""
                note(
                    f"\ninterrupted; {len(store.done())} of {scores_in_all} scores{bounds_left} are complete in "
                    f"{folder}; the same command resumes"
                )
                sys.exit(INTERRUPTED)
        scores = stored_scores(store)
        bracket = stored_bracket(store, scores)
        click.echo(str(scores if bracket is None else bracket))
        signs = stored_signs(study, store, scores)
        store.remember("signs", [{"kind": sign.kind, "text": str(sign)} for sign in signs])
        if attacks or certificates:  # bounds can be added later: the command with them tells more
            store.remember("command", _command())
        for sign in signs:
            note(f"warning: {sign.kind}: {sign}")
    note(f"\n{time.perf_counter() - began:.1f} s; kept in {folder}")
    return scores


def _doubts(study: Study, classifier: Classifier) -> list[str]:
    """Signs that data and model do not belong together, before time is spent on them."""
    found = []
    labelled = [subject for subject in study.subjects if subject.label is not None]
    right = sum(subject.label == subject.predicted for subject in labelled)
    if labelled and right < FEW_RIGHT * len(labelled):
        found.append(
            f"only {right} of {len(labelled)} inputs are classified correctly: is preprocessing missing (--mean, "
            "--std), are the inputs in other units, or do the labels count from another number? Try inspect"
        )
    if classifier.bounds is None:
        largest = max(float(subject.x.abs().max()) for subject in study.subjects)
        if largest > UNUSUAL_INPUT:
            found.append(
                f"inputs reach {largest:g}, and there are no --bounds: a radius and a score are in the inputs' units; "
                "divide by 255 if these are pixels"
            )
    return found


def _was_given(name: str) -> bool:
    """Whether an option of the present command stands on its command line."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


@contextmanager
def _executor(
    name: str, processes: int | None, workers: int | None, address: str | None, gpus: float | None
) -> Iterator[Executor]:
    """Where shards are computed."""
    from cleverscore.run.local import InProcess, Processes

    if name == "ray":
        if processes is not None:
            raise click.UsageError("--processes is for --executor local; with ray say how many --workers")
        from cleverscore.run.ray import Ray

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


def _command() -> str | None:
    """The command line as it was typed, where this is the program and not a function called by another one."""
    context = click.get_current_context(silent=True)
    return None if context is None else (context.find_root().obj or {}).get("command")


def _slug(model: str) -> str:
    name = model.split("?")[0].rsplit(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-") or "model"


@program.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--targets", "all_targets", is_flag=True, help="One line per target class, not per input.")
def show(run: Path, all_targets: bool) -> None:
    """Print the table of RUN again."""
    from cleverscore.run.reading import describe_run, no_collection, stored_bracket, stored_scores, what_is_missing
    from cleverscore.run.store import Store
    from cleverscore.score import Scores

    with no_collection(), Store.open(run) as store:
        scores = stored_scores(store, maxima=False)
        bracket = stored_bracket(store, scores)
        note(describe_run(store))
        unfinished = what_is_missing(store)
        if unfinished is not None:
            note(unfinished)
    if not len(scores):
        note(f"{run} holds no finished input yet")
        return
    click.echo(str(Scores(scores.rows, scores.rows) if all_targets else scores if bracket is None else bracket))


@program.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "parquet", "card"]),
    default="csv",
    show_default=True,
    help="Rows as csv, json or parquet, or a section for a model card.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: stdout]")
def export(run: Path, form: str, out: Path | None) -> None:
    """Write the rows of RUN, one per input and target, for other programs; or a section for a model card (card)."""
    from cleverscore.run.reading import no_collection
    from cleverscore.run.store import Store
    from cleverscore.show.export import write

    with no_collection(), Store.open(run) as store:
        write(store, form, out)
    if out is not None:
        note(f"written: {out}")


@program.command()
@click.argument("model")
@click.argument("data", required=False)
@_model_options
def inspect(model: str, data: str | None, **options: Any) -> None:
    """Say what was understood of MODEL: classes, input, box, preprocessing, layers; accuracy and cost on DATA."""
    from cleverscore.load.data import open_data
    from cleverscore.load.models import load_model
    from cleverscore.show.inspection import describe

    classifier = load_model(model, **_classifier_options(**options))
    click.echo(describe(classifier, None if data is None else open_data(data, classifier)))


@program.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    help="Folder for the run and its plots.",
)
@click.option("--model", default="zoo:mnist-mlp", show_default=True, help="Any MODEL for MNIST images.")
def demo(out: Path, model: str) -> None:
    """Score ten shipped digits with the shipped network: a table here, plots and a report in a folder."""
    from cleverscore.run.store import Store
    from cleverscore.show.demo import BLOCK_SIZE, BLOCKS, IMAGES, TOLERANCE, write_plots
    from cleverscore.show.report import write_report

    note(
        f"{model} on {IMAGES} MNIST test images, every other class as a target, at most {BLOCKS} blocks of "
        f"{BLOCK_SIZE} points each"
    )
    scores = run_score(
        model=model, data="zoo:mnist", norms=("2", "inf"), targets="untargeted", index=None, limit=IMAGES,
        skip_misclassified=False, chunk_size=None, workers=None, out=out, fresh=False, blocks=BLOCKS,
        block_size=BLOCK_SIZE, tolerance=TOLERANCE,
    )  # fmt: skip
    for path in write_plots(scores, out):
        note(f"plot: {path}")
    with Store.open(out) as store:
        write_report(store, out / "report.html")
    note(f"report: {out / 'report.html'} (open it in a browser)")


for command in (report, compare, gate):
    program.add_command(command)
