"""`python -m paper --medium`: compute what is missing, then write; with --render only write."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from cleverscore.scores.cost import duration
from paper.command import say
from paper.medium.page import render
from paper.medium.plan import Unit, all_units
from paper.medium.run import run
from paper.medium.store import Store
from paper.networks import NETWORKS, fingerprint, missing
from paper.sizes import MEDIUM


def main(options: argparse.Namespace) -> int:
    """The command."""
    store = Store(options.out / "units")
    if not options.render:
        names = [name for name in NETWORKS if not options.only or name in options.only]
        status = compute(store, names, options)
        if status:
            return status
    began = time.perf_counter()
    weights = {name: fingerprint(name, options.data) for name in NETWORKS if not missing(name, options.data)}
    page = render(store, options.out, weights)
    say(f"written to {page} and {options.out} in {duration(time.perf_counter() - began)}")
    return 0


def compute(store: Store, names: Sequence[str], options: argparse.Namespace) -> int:
    """Compute the units of these networks that are not there."""
    lacking = {name: texts for name in names if (texts := missing(name, options.data))}
    units = [unit for unit in all_units(MEDIUM) if unit.network in names]
    todo = [unit for unit in units if not there(store, unit, options.data, known=unit.network not in lacking)]
    say(f"{len(units) - len(todo)} of {len(units)} units of work are there already")
    _say_times(store, units, todo)
    if options.estimate:
        return 0
    wanted = {unit.network for unit in todo} & set(lacking)
    for text in dict.fromkeys(text for name in wanted for text in lacking[name]):
        say(text)
    if wanted and not options.available:
        say("get these files and name their folder with --data, or leave their networks out with --available")
        return 2
    todo = [unit for unit in todo if unit.network not in lacking]
    began = time.perf_counter()
    try:
        for i, (unit, seconds) in enumerate(run(todo, options.data, store.folder, workers=options.workers), 1):
            say(f"[{i}/{len(todo)}, {duration(time.perf_counter() - began)}] {unit}: {seconds:.1f} s")
    except KeyboardInterrupt:
        say("interrupted; what is done is kept, and the same command goes on from there")
        return 130
    return 0


def there(store: Store, unit: Unit, data: Path, *, known: bool) -> bool:
    """Whether a unit is there; of a network whose files are not here, whichever weights it was computed with."""
    return store.has(unit, MEDIUM[unit.network], fingerprint(unit.network, data) if known else None)


def _say_times(store: Store, units: Sequence[Unit], todo: Sequence[Unit]) -> None:
    """Hours left by network, from what units of the same question took on one core."""
    took = store.seconds()
    for network in dict.fromkeys(unit.network for unit in todo):
        own = [unit for unit in units if unit.network == network]
        left, unknown = 0.0, 0
        for question in dict.fromkeys(unit.question for unit in own):
            waiting = [unit for unit in todo if unit.network == network and unit.question == question]
            known = [(took[unit.file], unit.stop - unit.start) for unit in own
                     if unit.question == question and unit.file in took]  # fmt: skip
            if known:
                each = sum(seconds for seconds, _ in known) / sum(images for _, images in known)
                left += each * sum(unit.stop - unit.start for unit in waiting)
            else:
                unknown += len(waiting)
        rest = f", and {unknown} units of a kind that has not run yet" if unknown else ""
        say(f"{NETWORKS[network].title}: about {duration(left)} on one core{rest}")
