"""The program and its commands. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cleverscore import __version__
from cleverscore.cli.results import compare, gate, note, report
from cleverscore.cli.runs import list_runs, show
from cleverscore.cli.score import INTERRUPTED, Limit, classifier_options, run_score
from cleverscore.errors import CleverError
from cleverscore.runs.allocator import keep_freed_pages


def main() -> None:
    """Run the program; an error that a user can cause is printed as one sentence, with exit code 2."""
    warnings.showwarning = _show_warning
    keep_freed_pages()
    try:
        program.main(standalone_mode=False, obj={"command": shlex.join(["cleverscore", *sys.argv[1:]])})
    except CleverError as error:
        note(f"error: {error}")
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        if len(sys.argv) == 1:
            error.show()  # without arguments, the help is shown
        else:
            note(f"error: {error.format_message()}" + (f" (options: {context.command_path} --help)" if context else ""))
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the program that reads our output, such as head, has ended
        sys.stderr.close()
        sys.exit(0)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # Libraries' own deprecation notices are not for the people who run this program.
    if not issubclass(category, (DeprecationWarning, FutureWarning)):
        note(f"warning: {message}")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, package_name="cleverscore")
def program() -> None:
    """CLEVER: how far an input must be moved before a neural network changes its class, without attacking it.

    Start with:  cleverscore demo
    """


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a model: properties that its file does not state, such as --bounds, and how it is loaded."""
    for option in reversed(
        (
            click.option("--bounds", metavar="LOW,HIGH", help="Smallest and largest valid input value, such as 0,1."),
            click.option(
                "--mean", metavar="M[,M...]", help="Subtracted from the inputs, one value or one per channel."
            ),
            click.option("--std", metavar="S[,S...]", help="Inputs are divided by this, one value or one per channel."),
            click.option(
                "--outputs",
                type=click.Choice(["logits", "probabilities", "logit"]),
                help="Kind of the model's outputs; logit: one output, positive for class 1.",
            ),
            click.option("--device", help="Where to compute, such as cuda or cpu.  [default: where the model is]"),
            click.option(
                "--allow-pickle",
                is_flag=True,
                help="Load pickled models, which can run any code; only if you trust them.",
            ),
        )
    ):
        command = option(command)
    return command


@program.command(short_help="Score MODEL on DATA into a run directory.")
@click.argument("model")
@click.argument("data")
@click.option(
    "--preset",
    default="quick",
    show_default=True,
    metavar="NAME",
    help="quick (20 inputs, CLEVER from small adaptive blocks, sharp, a quick attack), thorough (all inputs, up to 500 "
    "blocks of 1024, sharp, a longer attack, crown where the network allows it) or paper (all inputs, CLEVER alone, "
    "500 blocks of 1024, radius 5). Other options replace their part of it.",
)
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
    help="Radius of the ball, for all norms or, as in inf=0.1, for one; repeatable. auto, the default except in preset "
    "paper, is 5 in l2 and 0.3 in linf, times the width of the input box.",
)
@click.option("--blocks", type=int, help="Number of block maxima (N_b).  [paper: 500]")
@click.option("--block-size", type=int, help="Gradients per block (N_s).  [paper: 1024]")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same scores.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="paper, sharp (search for the largest falls of the margin), released-code (the authors' program), slope, "
    "second-order, or an estimator of your own as package.module:attribute; repeatable, for a column each.",
)
@click.option(
    "--tolerance",
    type=float,
    metavar="SHARE",
    help="Stop where more blocks would hardly change a score by this share (0.05), and compute no more gradients "
    "for classes that cannot be the nearest; 0 does only the latter. The sharp method does not use it.",
)
@click.option(
    "--budget",
    metavar="AMOUNT",
    help="End after this many gradients (2000000), divided among the inputs, but not before 10 blocks; or after this "
    "time (90s, 10m, 2h), counted from the start of the command: as many inputs as it allows, at least one, each with "
    "its attacks and certificates. The same command then goes on with the other inputs.",
)
@click.option(
    "--penalty",
    type=click.FloatRange(min=0.0),
    metavar="WEIGHT",
    help="Weight of (scale / range)^2 in the tail fit, which keeps end-points finite: a larger one gives larger scores "
    "where the maxima show no end-point; 0 is the plain likelihood.  [default: 0.01, as in the authors' program]",
)
@click.option(
    "--region",
    type=click.Choice(["ball", "box"]),
    help="Count only points within --bounds (box), or every point of the ball, as the paper does.  [default: box where "
    "the model has bounds, except in preset paper]",
)
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME",
    help="Attack the inputs as well: cw, ddn, fmn, ead, ifgsm, descent, or best; NAME:quick, NAME:default or NAME:long "
    "for another preset; none; repeatable. Can be added to a run later.",
)
@click.option(
    "--certify",
    "certificates",
    multiple=True,
    metavar="METHOD",
    help="Certify the inputs as well: crown, local-lipschitz, norm-product, or auto-lirpa where it is installed; none; "
    "repeatable. Can be added to a run later.",
)
@click.option("--index", metavar="ROWS", help="Rows of the data, such as 3,17,40-49.")
@click.option("--limit", type=Limit(), help="Score the first inputs only, or all.")
@click.option(
    "--correct-only",
    is_flag=True,
    help="Take only inputs that the model classifies correctly; --limit counts only those.",
)
@click.option("--skip-misclassified", is_flag=True, help="Leave misclassified inputs out, as the paper does.")
@click.option("--chunk-size", type=int, help="Points per forward pass.  [default: fits memory]")
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
    "--shard-seconds", type=float, default=20.0, show_default=True, help="Approximate time of a shard (piece of work)."
)
@click.option("--out", type=click.Path(path_type=Path), help="Run directory.  [default: runs/MODEL-HASH]")
@click.option("--fresh", is_flag=True, help="Start over if the run directory contains a run.")
@_model_options
def score(**options: Any) -> None:
    """Score MODEL on DATA. Repeat the command to resume an interrupted run.

    MODEL is zoo:NAME, package.module:factory[?weights=file.safetensors], an ONNX, TorchScript or torch.export file, or
    a Hugging Face folder. DATA is zoo:mnist, an npz file with arrays x and y, an npy, safetensors or csv file
    (file.csv?label=COLUMN), a folder of pictures, a saved Hugging Face data set, mnist:FOLDER or cifar10:FOLDER.
    """
    run_score(**options)


@program.command(short_help="Write RUN as CSV, JSON, Parquet or model card.")
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
    from cleverscore.reporting.export import write
    from cleverscore.runs.results import no_collection
    from cleverscore.runs.store import Store

    with no_collection(), Store.open(run) as store:
        write(store, form, out)
    if out is not None:
        note(f"written: {out}")


@program.command(short_help="Describe how MODEL and DATA were understood.")
@click.argument("model")
@click.argument("data", required=False)
@_model_options
def inspect(model: str, data: str | None, **options: Any) -> None:
    """Describe MODEL: classes, input, box, preprocessing, layers; accuracy and cost on DATA."""
    from cleverscore.loading.dataset import open_data
    from cleverscore.loading.models import load_model
    from cleverscore.reporting.inspection import describe

    classifier = load_model(model, **classifier_options(**options))
    told = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in options.items()
        if value
    ]
    command = None if data is None else shlex.join(["cleverscore", "score", model, data, *told])
    click.echo(describe(classifier, None if data is None else open_data(data, classifier), command=command))


@program.command(short_help="Score ten shipped digits: table, plots, report.")
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
    from cleverscore.reporting.html.report import write_report
    from cleverscore.reporting.plots.demo import BLOCK_SIZE, BLOCKS, IMAGES, write_plots
    from cleverscore.runs.results import stored_bracket
    from cleverscore.runs.store import Store

    note(f"{model} on {IMAGES} MNIST test images: preset quick, with larger blocks and with certificates")
    scores = run_score(
        model=model, data="zoo:mnist", norms=("2", "inf"), targets="untargeted", index=None, limit=IMAGES,
        skip_misclassified=False, chunk_size=None, workers=None, out=out, fresh=False, blocks=BLOCKS,
        block_size=BLOCK_SIZE, certificates=("crown",),
    )  # fmt: skip
    with Store.open(out) as store:
        bracket = stored_bracket(store, scores)
        assert bracket is not None  # the demo attacks and certifies
        for path in write_plots(scores, bracket, out):
            note(f"plot: {path}")
        write_report(store, out / "report.html")
    note(f"report: {out / 'report.html'} (open it in a browser)")


for command in (show, list_runs, report, compare, gate):
    program.add_command(command)
