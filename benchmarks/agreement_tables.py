"""The tables and the picture of `benchmarks.agreement`, from its pieces."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.score_methods import METHODS
from benchmarks.trained_networks import ROBUST, role

Piece = dict[str, Any]
NORMS = {"1": 1.0, "2": 2.0, "inf": math.inf}
ROUNDING = 1e-4  # a score is above the referee if it is so by more than this share: what bisections leave


@dataclass(frozen=True)
class Task:
    """One piece of work."""

    network: str
    norm: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.network}_{self.norm}_{self.method}_{self.seed}.json".replace(":", "-")


def read(work: Path) -> dict[Task, Piece]:
    pieces = (json.loads(path.read_text()) for path in sorted(work.glob("*.json")))
    return {Task(piece["network"], piece["norm"], piece["method"], piece["seed"]): piece for piece in pieces}


def referee(pieces: dict[Task, Piece], network: str, norm: str) -> tuple[np.ndarray, dict[str, int]] | None:
    """The smallest distance of each input over all attacks that were run, and how often each attack found it."""
    found = {
        task.method.removeprefix("attack-"): piece["scores"]
        for task, piece in pieces.items()
        if (task.network, task.norm) == (network, norm) and task.method.startswith("attack-")
    }
    if not found:
        return None
    count = min(len(scores) for scores in found.values())
    sizes = np.array([scores[:count] for scores in found.values()])
    winners = [list(found)[i] for i in sizes.argmin(0)]
    return sizes.min(0), {name: winners.count(name) for name in found}


def correlation(scores: np.ndarray, sizes: np.ndarray) -> float:
    if len(scores) < 4 or np.ptp(scores) == 0.0 or np.ptp(sizes) == 0.0:
        return math.nan
    return float(spearmanr(scores, sizes).statistic)


def compared(pieces: Sequence[Piece], sizes: np.ndarray) -> dict[str, Any]:
    """One method on one network in one norm: its runs (one per seed) against the referee."""
    count = min([len(sizes), *(len(piece["scores"]) for piece in pieces)])
    scores = np.array([piece["scores"][:count] for piece in pieces], dtype=np.float64)
    usable = np.isfinite(sizes[:count]) & np.isfinite(scores).all(0)
    scores, sizes = scores[:, usable], sizes[:count][usable]
    ratios = scores / sizes
    ranks = [correlation(row, sizes) for row in scores]
    spread = scores.max(0) / np.maximum(scores.min(0), 1e-300)
    return {
        "inputs": int(usable.sum()),
        "missing": int(count - usable.sum()),
        "seeds": len(pieces),
        "spearman": float(np.mean(ranks)),
        "smallest_spearman": float(np.min(ranks)),
        "median_ratio": float(np.median(ratios)),
        "smallest_ratio": float(ratios.min()),
        "largest_ratio": float(ratios.max()),
        "above": float((ratios > 1.0 + ROUNDING).mean()),
        "above_3": float((ratios > 1.03).mean()),
        "ratios": ratios.tolist(),
        "scores": scores.tolist(),
        "referee": sizes.tolist(),
        "seed_spread": spread.tolist(),
        "seconds": float(np.mean([piece["seconds"] for piece in pieces])),
        "gradients": float(np.mean([piece["gradients"] for piece in pieces])),
        "settings": pieces[0]["settings"],
        "sources": sorted({piece["source"] for piece in pieces}),
        "warnings": sorted({text for piece in pieces for text in piece["warnings"]}),
    }


def assembled(pieces: dict[Task, Piece], networks: Sequence[str], norms: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for network in networks:
        for norm in norms:
            judge = referee(pieces, network, norm)
            if judge is None:
                continue
            sizes, winners = judge
            usable = sizes[np.isfinite(sizes)]
            low, high = np.quantile(usable, (0.25, 0.75))
            row: dict[str, Any] = {
                "network": network,
                "role": role(network),
                "robust": network in ROBUST,
                "norm": norm,
                "referee_median": float(np.median(usable)),
                "referee_spread": float((high - low) / np.median(usable)),
                "referee_failed": int(len(sizes) - len(usable)),
                "nearest_by": winners,
                "methods": {},
            }
            for method in METHODS:
                repeats = [
                    piece
                    for task, piece in sorted(pieces.items(), key=lambda item: item[0].seed)
                    if (task.network, task.norm, task.method) == (network, norm, method)
                ]
                if repeats:
                    row["methods"][method] = compared(repeats, sizes)
            one = pieces.get(Task(network, norm, "sharp", 0))
            others = {
                name: pieces.get(Task(network, norm, f"sharp-{name}", 0)) for name in ("all", "box", "near", "25")
            }
            if one:
                row |= {f"sharp_{name}": nested(name, one, other) for name, other in others.items() if other}
            scored, attacked = (pieces.get(Task(network, norm, name, 0)) for name in ("sharp-box", "box-attack"))
            if scored and attacked:
                row["in_box"] = compared([scored], np.array(attacked["scores"], dtype=np.float64))
            if row["methods"]:
                rows.append(row)
    return rows


def nested(name: str, one: Piece, other: Piece) -> list[float]:
    """What a sharp run with another set of points, targets or seeds makes of each input's score, as a ratio.

    all     untargeted score / smallest over all targets.
    box     score in the box / in the ball.
    near    score in a smaller ball / what it should be, the smaller of score and radius.
    25      smallest of 25 scores / `score_low`.
    """
    score, found = (np.array(piece["scores"], dtype=np.float64) for piece in (one, other))
    if name == "all":
        return (score / found).tolist()
    if name == "box":
        return (found / score).tolist()
    if name == "near":
        return (found / np.minimum(score, other["more"]["radius"])).tolist()
    return (found / np.array(one["more"]["low"], dtype=np.float64)).tolist()


def criteria(rows: Sequence[dict[str, Any]], method: str = "sharp") -> list[dict[str, Any]]:
    """What the method is held to, each with its value and whether it holds."""
    rows = [row for row in rows if method in row["methods"]]
    if not rows:
        return []
    mine = [(row, row["methods"][method]) for row in rows]
    ratios = np.concatenate([np.ravel(found["ratios"]) for _, found in mine])
    by_network: dict[str, list[float]] = {}
    for row, found in mine:
        by_network.setdefault(row["network"], []).extend(np.ravel(found["ratios"]))
    shares = {name: float((np.array(values) > 1.0 + ROUNDING).mean()) for name, values in by_network.items()}
    worst = max(shares, key=lambda name: shares[name])
    short = [
        f"{row['network']} l{row['norm']} {found['median_ratio']:.2f}"
        for row, found in mine
        if found["median_ratio"] < (0.75 if row["robust"] else 0.85)
    ]
    spread = [(row, found) for row, found in mine if row["referee_spread"] >= 0.2]
    unordered = [
        f"{row['network']} l{row['norm']} {found['spearman']:.2f}" for row, found in spread if found["spearman"] < 0.95
    ]
    judged_rows = [(row, found) for row, found in mine if {"margin", "slope"} <= set(row["methods"])]
    beaten = [
        f"{row['network']} l{row['norm']}"
        for row, found in judged_rows
        if found["spearman"] < max(row["methods"][null]["spearman"] for null in ("margin", "slope"))
    ]
    seeds = np.concatenate([found["seed_spread"] for _, found in mine if found["seeds"] > 1] or [[math.nan]])
    equal, box, near, more = (
        np.concatenate([row[f"sharp_{name}"] for row in rows if f"sharp_{name}" in row] or [[math.nan]])
        for name in ("all", "box", "near", "25")
    )
    within = float((np.abs(equal - 1.0) <= 0.01).mean())
    above, far = float((ratios > 1.0 + ROUNDING).mean()), int((ratios > 1.03).sum())
    tail, most = float(np.quantile(seeds, 0.95)), float(seeds.max())

    def entry(text: str, value: str, holds: bool) -> dict[str, Any]:
        missing = "nan" in value
        return {"criterion": text, "value": "not measured" if missing else value, "holds": None if missing else holds}

    return [
        entry("above the referee: at most 1% of all rows", f"{above:.2%} of {len(ratios)}", above <= 0.01),
        entry("at most 5% on any network", f"{shares[worst]:.1%} ({worst})", shares[worst] <= 0.05),
        entry("none above by more than 3%", f"{far}, largest ratio {ratios.max():.3f}", far == 0),
        entry("median ratio at least .85 (.75 if robustly trained) everywhere", _listed(short, len(mine)), not short),
        entry(
            "Spearman at least .95 where the referee's IQR / median is at least .2",
            _listed(unordered, len(spread)),
            not unordered,
        ),
        entry(
            "Spearman at least that of both null baselines in 90% of cases",
            _listed(beaten, len(judged_rows)),
            len(beaten) <= 0.1 * len(judged_rows),
        ),
        entry("seeds: 95th percentile of largest / smallest at most 1.05", f"{tail:.3f}", tail <= 1.05),
        entry("seeds: largest / smallest at most 1.15", f"{most:.3f}", most <= 1.15),
        entry(
            'untargeted within 1% of the minimum over targets="all" for 99% of rows',
            f"{within:.1%} of {len(equal)}, ratios {np.min(equal):.3f} to {np.max(equal):.3f}",
            within >= 0.99,
        ),
        entry(
            "in the box no smaller than in the ball, within 1%",
            f"{(box >= 0.99).sum()} of {len(box)}, smallest ratio {np.min(box):.3f}",
            bool((box >= 0.99).all()),
        ),
        entry(
            "in a smaller ball the smaller of score and radius, within 1%",
            f"{(np.abs(near - 1.0) <= 0.01).sum()} of {len(near)}, ratios {np.min(near):.3f} to {np.max(near):.3f}",
            bool((np.abs(near - 1.0) <= 0.01).all()),
        ),
        entry(
            "`score_low` at most the smallest of 25 further searches in 90%",
            f"{(more >= 1.0).mean():.1%} of {len(more)}, smallest ratio {np.min(more):.3f}",
            bool((more >= 1.0).mean() >= 0.9),
        ),
    ]


WORDS = {True: "yes", False: "no", None: ""}


def _listed(failures: Sequence[str], cases: int) -> str:
    return f"all of {cases}" if not failures else f"not in {len(failures)} of {cases}: {', '.join(failures)}"


def _cell(row: dict[str, Any], method: str, name: str, form: str) -> str:
    found = row["methods"].get(method)
    return "" if found is None or math.isnan(found[name]) else format(found[name], form)


def _criteria_table(group: str, found: Sequence[dict[str, Any]]) -> list[str]:
    if not found:
        return []
    rows = (f"| {c['criterion']} | {c['value']} | {WORDS[c['holds']]} |" for c in found)
    return [f"| what the sharp score is held to, {group} | found | holds |", "|---|---|---|", *rows, ""]


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.agreement -->",
        f"Up to {result['inputs']} correctly classified test inputs of each network. The referee is the smallest "
        "distance that any attack found, without the input box; ratio is score / referee, above the share of scores "
        "larger than the referee. Networks marked * are held out: nothing was tuned on them.",
        "",
        *(line for group, found in result["criteria"].items() for line in _criteria_table(group, found)),
        "",
        "Rank correlation (Spearman) with the referee. IQR / median is that of the referee's distances: where it is "
        "small, there is little to rank.",
        "",
        "| network | norm | referee | IQR / median | sharp | paper | ART | logit margin | margin / slope |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = {id(row): f"{row['network']}{'*' if row['role'] == 'held_out' else ''}" for row in result["rows"]}
    for row in result["rows"]:
        ranks = " | ".join(_cell(row, m, "spearman", ".2f") for m in ("sharp", "paper", "art", "margin", "slope"))
        known = f"{names[id(row)]} | {row['norm']} | {row['referee_median']:.4g} | {row['referee_spread']:.2f}"
        lines.append(f"| {known} | {ranks} |")
    titles = {
        "sharp": "The sharp score", "sharp-alone": "Ascents across shells alone, without descents",
        "paper": "The paper's score", "art": "ART's score",
    }  # fmt: skip
    for method, title in titles.items():
        shown = [row for row in result["rows"] if method in row["methods"]]
        if not shown:
            continue
        settings = "; ".join(sorted({json.dumps(row["methods"][method]["settings"]) for row in shown}))
        lines += [
            "",
            f"{title} ({settings}); all seeds together.",
            "",
            "| network | norm | inputs x seeds | median ratio | largest | above | above by 3% | seeds: 95% | worst "
            "| untargeted / all | CPU seconds | gradients |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in shown:
            found = row["methods"][method]
            seeds = ["", ""]
            if found["seeds"] > 1:
                seeds = [f"{np.quantile(found['seed_spread'], 0.95):.3f}", f"{max(found['seed_spread']):.3f}"]
            equal = row.get("sharp_all") if method == "sharp" else None
            lines.append(
                f"| {names[id(row)]} | {row['norm']} | {found['inputs']} x {found['seeds']} "
                f"| {found['median_ratio']:.3f} | {found['largest_ratio']:.3f} | {found['above']:.1%} "
                f"| {found['above_3']:.1%} | {seeds[0]} | {seeds[1]} "
                f"| {f'{min(equal):.3f} to {max(equal):.3f}' if equal else ''} "
                f"| {found['seconds']:.2f} | {found['gradients']:,.0f} |"
            )
    lines += _box_table([row for row in result["rows"] if "in_box" in row], names)
    lines += ["", "Attacks that found the nearest point, over all inputs: " + _winners(result["rows"]) + "."]
    if len(result["sources"]) > 1:
        lines += [
            "",
            f"Scores come from {len(result['sources'])} versions of the code: {', '.join(result['sources'])}.",
        ]
    return "\n".join(lines) + "\n"


def _box_table(rows: Sequence[dict[str, Any]], names: dict[int, str]) -> list[str]:
    """Scores in the box against attacks that stay in it."""
    if not rows:
        return []
    ratios = np.concatenate([np.ravel(row["in_box"]["ratios"]) for row in rows])
    above = int((ratios > 1.0 + ROUNDING).sum())
    lines = [
        "",
        'In the box (`region="box"`), against the nearest of long attacks that stay in it (ours from two seeds, FMN, '
        f"in l2 also DDN): {above} of {len(ratios)} scores are above, the largest ratio is {ratios.max():.3f}.",
        "",
        "| network | norm | inputs | attack | Spearman | median ratio | largest | above |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row["in_box"]
        lines.append(
            f"| {names[id(row)]} | {row['norm']} | {found['inputs']} | {np.median(found['referee']):.4g} "
            f"| {found['spearman']:.2f} | {found['median_ratio']:.3f} | {found['largest_ratio']:.3f} "
            f"| {found['above']:.1%} |"
        )
    return lines


def _winners(rows: Sequence[dict[str, Any]]) -> str:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in row["nearest_by"].items():
            total[name] = total.get(name, 0) + count
    return ", ".join(f"{name} {count}" for name, count in sorted(total.items(), key=lambda item: -item[1]))


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Score against referee, one panel per method, one colour per norm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {"sharp": "sharp score", "paper": "the paper's score", "margin": "logit margin"}
    colours = {"1": "tab:green", "2": "tab:blue", "inf": "tab:orange"}
    panels = {name: title for name, title in panels.items() if any(name in row["methods"] for row in rows)}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 4), constrained_layout=True, squeeze=False)
    for axis, (method, title) in zip(axes[0], panels.items(), strict=True):
        for norm, colour in colours.items():
            chosen = [row["methods"][method] for row in rows if row["norm"] == norm and method in row["methods"]]
            if chosen:
                sizes = np.concatenate([found["referee"] for found in chosen])
                scores = np.concatenate([found["scores"][0] for found in chosen])
                label = f"l{norm}".replace("inf", "∞")
                axis.loglog(sizes, scores, ".", color=colour, alpha=0.6, markersize=4, label=label)
        if method != "margin":
            ends = axis.get_xlim()
            axis.loglog(ends, ends, color="black", linewidth=0.8)
        axis.set(title=title, xlabel="smallest distance of any attack")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _strict(value: Any) -> Any:
    """The same without NaN and infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarise(arguments: argparse.Namespace) -> None:
    rows = assembled(read(arguments.work), arguments.networks, arguments.norms)
    if not rows:
        print("there are no referees in --work yet")
        return
    result = {
        "inputs": arguments.inputs,
        "criteria": {
            group: criteria([row for row in rows if (row["norm"] == "1") == (group == "l1")])
            for group in ("l2 and linf", "l1")
        },
        "sources": sorted({text for row in rows for found in row["methods"].values() for text in found["sources"]}),
        "rows": rows,
    }
    text = markdown(result)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "_agreement_benchmark.md").write_text(text)
    (arguments.out / "_agreement_benchmark.json").write_text(json.dumps(_strict(result), indent=1) + "\n")
    plot(rows, arguments.out / "_static" / "agreement.png")
