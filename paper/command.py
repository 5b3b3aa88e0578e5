"""What all tables and figures share: their arguments, computing what they need, and writing what they make."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cleverscore as cs
from cleverscore.attacks.foolbox_adapter import EPSILONS
from cleverscore.scores.cost import duration
from paper.networks import KINDS, NETWORKS, classifier_of, correct_images_of, missing
from paper.results import Results
from paper.sizes import BLOCK_COUNTS, FULL, QUICK, Size
from paper.tables import Table
from paper.work import Kept, Question, Unit, in_turn, on_ray, units_of

HERE = Path(__file__).parent
FEW_TABLES, FEW_FILES = 3, 12


@dataclass(frozen=True)
class Product:
    """A table or a figure.

    needs       the questions to be answered first, by network.
    make        writes it.
    """

    name: str
    networks: tuple[str, ...]
    needs: tuple[Question, ...]
    make: Callable[[Results], None]


def tables_product(
    name: str, networks: tuple[str, ...], needs: tuple[Question, ...], tables: Callable[[Results], Sequence[Table]]
) -> Product:
    """A product that is one or more tables."""

    def make(results: Results) -> None:
        for table in tables(results):
            table.write(results.out / "tables")

    return Product(name, networks, needs, make)


def arguments(description: str | None, given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    # As the program was called: Python says __main__.py of a package.
    called = Path(sys.argv[0])
    name = "paper" if called.stem == "__main__" else f"paper.{called.stem}"
    parser = argparse.ArgumentParser(
        f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="small sizes, for two cores (the default)")
    sizes.add_argument("--medium", action="store_true", help="days in the background; units are in the repository")
    sizes.add_argument("--full", action="store_true", help="the paper's sizes, for a cluster")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="folder with what is not shipped (default: data)"
    )
    parser.add_argument("--out", type=Path, help="where results go (default: paper/made, or paper/medium)")
    parser.add_argument("--only", choices=list(NETWORKS), action="append", help="this network alone; repeatable")
    parser.add_argument("--available", action="store_true", help="leave out networks whose files are not there")
    parser.add_argument("--ray-address", help="compute on this Ray cluster ('local' starts one here)")
    parser.add_argument("--estimate", action="store_true", help="say what it would cost, and stop")
    medium = parser.add_argument_group("with --medium")
    medium.add_argument("--render", action="store_true", help="write tables, figures and the page; compute nothing")
    medium.add_argument("--workers", type=int, default=1, help="processes, each with a unit of its own (default: 1)")
    options = parser.parse_args(given)
    if not options.medium and (options.render or options.workers != 1):
        parser.error("--render and --workers belong to --medium")
    if options.medium and options.ray_address:
        parser.error("--medium computes on this machine; take several processes with --workers")
    options.out = options.out or (HERE / "medium" if options.medium else HERE / "made")
    return options


def main(products: Sequence[Product], description: str | None, given: Sequence[str] | None = None) -> int:
    """Compute what is missing, then write."""
    options = arguments(description, given)
    if options.medium:
        if len(products) == 1:
            say("the middle size has one page for everything: python -m paper --medium")
            return 2
        from paper.medium import command  # it uses what this module offers

        return command.main(options)
    wanted = [name for name in NETWORKS if any(name in product.networks for product in products)]
    wanted = [name for name in wanted if not options.only or name in options.only]
    lacking = {name: texts for name in wanted if (texts := missing(name, options.data))}
    for text in dict.fromkeys(text for texts in lacking.values() for text in texts):
        titles = ", ".join(NETWORKS[name].title for name, texts in lacking.items() if text in texts)
        say(f"{titles}: {text}")
    if any(Question("accuracy") in product.needs for product in products) and not (options.data / "mnist").is_dir():
        say(f"{options.data / 'mnist'} is not there: test accuracies of the MNIST networks are left out")
    if lacking and not options.available:
        say(
            "nothing was computed; get these files and name their folder with --data (make: DATA=folder), or leave "
            "those networks out with --available (make: OPTIONS=--available)"
        )
        return 2
    names = tuple(name for name in wanted if name not in lacking)
    sizes = FULL if options.full else QUICK
    kept = Kept(options.out / "units", options.data)
    results = Results(kept, sizes, names, options.full, options.out)
    units = list(dict.fromkeys(unit for product in products for unit in _units(product, names, sizes)))
    todo = [unit for unit in units if kept.rows(unit) is None]
    # One network after the other: it is loaded once.
    todo.sort(key=lambda unit: names.index(unit.network))
    if units:
        say(f"{len(units) - len(todo)} of {len(units)} units of work are there already")
    if (options.full and todo) or options.estimate:
        _say_cost(kept.data, sizes, todo)
        if options.estimate:
            return 0
    try:
        _compute(kept, todo, options.ray_address)
    except KeyboardInterrupt:
        say("interrupted; what is done is kept, and the same command goes on from there")
        return 130
    began = time.time()
    for product in products:
        product.make(results)
    _say_what_was_made(options.out, began)
    return 0


def _say_what_was_made(out: Path, began: float) -> None:
    """Names of the files that were written, and a table or two as it is."""
    folders = [out / "tables", out / "figures"]
    paths = sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())
    # Clocks of files are coarser than ours.
    made = [path for path in paths if path.stat().st_mtime >= began - 1.0]
    tables = [path for path in made if path.suffix == ".md"]
    if len(tables) <= FEW_TABLES:
        for path in tables:
            print(path.read_text(encoding="utf-8"))
    names = ", ".join(path.name for path in made) if len(made) <= FEW_FILES else f"{len(made)} files"
    if made:
        say(f"written to {out}: {names}")


def _units(product: Product, names: Iterable[str], sizes: dict[str, Size]) -> list[Unit]:
    return [
        unit
        for name in names
        if name in product.networks
        for question in product.needs
        for unit in units_of(name, question, sizes[name])
    ]


def _compute(kept: Kept, todo: Sequence[Unit], address: str | None) -> None:
    data = kept.data
    began = time.perf_counter()
    done = in_turn(todo, data) if address is None else on_ray(todo, data, address)
    if todo and address is None:
        say(f"computing, beginning with {todo[0]}")
    for i, (unit, rows, seconds) in enumerate(done, 1):
        kept.save(unit, rows, seconds)
        say(f"[{i}/{len(todo)}, {duration(time.perf_counter() - began)}] {unit}: {seconds:.1f} s")


def _say_cost(data: Path, sizes: Mapping[str, Size], todo: Sequence[Unit]) -> None:
    """What is still to be computed costs about this, on this machine."""
    say("measuring each network for a few seconds; other work on this machine makes it look slower")
    total = 0.0
    for name in dict.fromkeys(unit.network for unit in todo):
        classifier = classifier_of(name, data)
        size = sizes[name]
        x = correct_images_of(name, data, 1).x
        each = {}
        for targets in ("runner_up", "all") if NETWORKS[name].family != "imagenet" else ("runner_up",):
            estimate = cs.estimate(classifier, x, targets=targets, blocks=10, block_size=64)
            each[targets] = estimate.seconds / estimate.points
        one = each["runner_up"]
        whole = each.get("all", one * (1 + len(KINDS)) / 2)  # one forward pass, three backward
        seconds = 0.0
        for unit in (unit for unit in todo if unit.network == name):
            images = unit.stop - unit.start
            per_image = {
                "clever": size.blocks * size.block_size * whole,
                "slope": size.blocks * size.block_size * one / 2,
                "many": BLOCK_COUNTS[-1] * size.many_size * 2 * one,
                "cw": size.searches * size.cw * one,
                "ifgsm": len(EPSILONS) * size.ifgsm * one,
                "time": 1024 * one,
                "accuracy": 0.0,
            }[unit.question.kind]
            seconds += images * per_image
        total += seconds
        say(f"{NETWORKS[name].title}: about {duration(seconds)}")
    say(f"together about {duration(total)} on this machine; {len(todo)} units of work can run at the same time")


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)
