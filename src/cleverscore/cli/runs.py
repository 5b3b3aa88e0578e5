"""Commands that list runs and show one: its table, its robust accuracy, one input, its summary for programs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cleverscore.cli.results import note


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--targets", "all_targets", is_flag=True, help="One line per target class, not per input.")
@click.option(
    "--at",
    "epsilons",
    multiple=True,
    metavar="[NORM=]EPS",
    help="Print robust accuracy at this epsilon instead: 0.03, 8/255 or, for one norm, inf=8/255; repeatable. With "
    "--index: whether that input is robust at this epsilon.",
)
@click.option(
    "--index",
    "inputs",
    type=int,
    multiple=True,
    metavar="ROW",
    help="Print what is known of this input instead: proof, scores, attack; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON: medians, accuracy, robust accuracy.")
def show(run: Path, all_targets: bool, epsilons: tuple[str, ...], inputs: tuple[int, ...], as_json: bool) -> None:
    """Print the table of RUN again, its robust accuracy (--at), one input (--index), or its summary (--json)."""
    from cleverscore.reporting.findings import findings
    from cleverscore.reporting.one_input import input_text
    from cleverscore.reporting.robust_accuracy import parse_epsilons, robust_accuracy_table
    from cleverscore.reporting.run_summary import run_summary
    from cleverscore.runs.results import describe_run, no_collection, stored_bracket, stored_scores, what_is_missing
    from cleverscore.runs.store import Store

    if inputs and (as_json or all_targets):
        raise click.UsageError("--index is for text: leave --json and --targets out")
    wanted = parse_epsilons(epsilons)
    with no_collection(), Store.open(run) as store:
        if not as_json:
            note(describe_run(store))
            unfinished = what_is_missing(store)
            if unfinished is not None:
                note(unfinished)
        if wanted or inputs or as_json:
            found = findings(store, maxima=False)
        else:
            scores = stored_scores(store, maxima=False)
            bracket = stored_bracket(store, scores)
    if as_json:
        click.echo(json.dumps(run_summary(found, wanted), indent=1))
    elif not (found.ids if wanted or inputs else len(scores)):
        note(f"{run} holds no finished input yet")
    elif inputs:
        click.echo("\n".join(input_text(found, input_id, wanted) for input_id in inputs))
    elif wanted:
        click.echo(robust_accuracy_table([norm.robust_accuracy for norm in found.norms if norm.known], wanted))
    else:
        if all_targets:
            others = () if bracket is None else bracket.others
            click.echo("\n\n".join(part.every_target() for part in [scores, *(other.scores for other in others)]))
        else:
            click.echo(str(scores if bracket is None else bracket))


@click.command(name="runs", short_help="List the runs in FOLDER.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_runs(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (default: runs) and below: model, data, inputs, medians, attack, age."""
    from cleverscore.reporting.run_list import listed, runs_table

    found = listed(folder)
    if as_json:
        click.echo(json.dumps([run.to_dict() for run in found], indent=1))
    elif found:
        click.echo(runs_table(found))
    else:
        note(f"{folder} holds no run; make one with: cleverscore score MODEL DATA")
