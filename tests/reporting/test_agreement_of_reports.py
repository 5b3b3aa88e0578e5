"""The report, the model card and the summary say of every method what the table in the terminal says."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from cleverscore.reporting.findings import findings
from cleverscore.reporting.html.report import report_page
from cleverscore.reporting.model_card import model_card
from cleverscore.reporting.run_summary import run_summary
from cleverscore.runs.results import stored_bracket, stored_scores
from cleverscore.runs.store import Store
from tests.stored_runs import add_bounds, made_run


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores of paper, three of which are above their attacks, and of sharp, all of which are below."""
    made = made_run(tmp_path_factory.mktemp("both") / "run", inputs=12, blocks=12, norms=("2",), sharp=0.5)
    return add_bounds(made)


def test_the_report_has_the_remarks_of_the_table_for_every_method(both: Path) -> None:
    with Store.open(both) as store:
        table, page = str(stored_bracket(store, stored_scores(store))), report_page(store)
    remarks = table.split("\n\n")[1].splitlines()[1:]  # the first line has the medians
    assert "! CLEVER is above the attack for 3 of 12 rows: believe the attack" in remarks
    assert any(line.startswith("CLEVER: ~ ") for line in remarks)
    section = unescape(page.split("What to know before relying on this")[1].split("</section>")[0])
    assert [line for line in remarks if line not in section] == []
    assert "Nothing stood out" not in section
    # What is counted of one method only names it.
    assert "misclassified (sharp, l2: 2)" in section


def test_the_headline_of_the_report_names_the_methods(both: Path, tmp_path: Path) -> None:
    with Store.open(both) as store:
        page = report_page(store)
    shown = re.compile("score above attack</span></dt><dd>(.*?)</dd>")
    assert shown.findall(page) == ["CLEVER 27.3%, sharp 0.0%"]  # 3 and 0 of the 11 inputs that an attack moved
    assert "as estimated by sharp;" in page
    with Store.open(add_bounds(made_run(tmp_path / "one", inputs=12, norms=("2",)))) as store:
        page = report_page(store)
    assert shown.findall(page) == ["27.3%"] and "as estimated;" in page


def test_card_and_summary_have_the_share_above_attacks_of_each_method(both: Path) -> None:
    with Store.open(both) as store:
        found = findings(store, maxima=False)
    lines = [line.split(" | ") for line in model_card(found).splitlines() if line.startswith("| l2 | ")]
    assert {line[1]: line[-1] for line in lines if line[1] in ("paper", "sharp")} == {
        "paper": "27.3% |",
        "sharp": "0.0% |",
    }
    (norm,) = run_summary(found)["norms"]
    shares = {name: method["score_above_attack"] for name, method in norm["methods"].items()}
    assert shares == {"paper": pytest.approx(3 / 11), "sharp": 0.0}
    # Some of the inputs, in another order.
    assert found.norms[0].over([5, 1]).violation_rate_of("paper") == 0.5
