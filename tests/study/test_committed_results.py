"""The tables that README and docs/findings.md show are those of the committed runs."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\*?[\w.]+\*?) \|(.*)\|$", re.MULTILINE)
RATES = re.compile(r"\.(\d{3}) / \.(\d{3})")
COLLAPSED = re.compile(r"(\d) of (\d)")
FAMILIES = {
    "Sokoban, long episodes": "long",
    "WebShop": "webshop",
    "maths by programs": "tir_math",
    "ALFWorld": "alfworld",
}


def runs(study: str, method: str) -> list[dict[str, str]]:
    """The committed runs of a method."""
    with (ROOT / "docs" / "studies" / study / "runs.csv").open() as file:
        found = [row for row in csv.DictReader(file) if row["method"] == method]
    assert found
    assert {row["status"] for row in found} == {"finished"}
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/findings.md"])
def test_the_table_of_methods_is_that_of_the_runs(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index("| SAMPO | .") :].partition("\n\n")[0]
    rows = ROW.findall(table)
    assert len(rows) == 14 + 1
    for name, said in rows:
        method = name.strip("*").replace("Dr.", "dr_").lower()
        weak, long = (runs(f"sokoban_{regime}", method) for regime in ("weak", "long"))
        means = [
            tuple(f"{1000 * fmean(float(row[decoding]) for row in found):03.0f}" for decoding in ("sampled", "greedy"))
            for found in (weak, long)
        ]
        assert RATES.findall(said) == means, name
        if method != "before":
            counts = [(str(sum(row["collapsed"] == "1" for row in found)), str(len(found))) for found in (weak, long)]
            assert COLLAPSED.findall(said) == counts, name


@pytest.mark.parametrize("page", ["README.md", "docs/findings.md"])
@pytest.mark.parametrize(("name", "task"), FAMILIES.items())
def test_the_table_of_families_is_that_of_the_runs(page: str, name: str, task: str) -> None:
    rows = re.findall(rf"^\| {name}, \d+ \|(.*)\|$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 1
    means = [
        tuple(f"{fmean(float(row[decoding]) for row in found):.3f}"[2:] for decoding in ("sampled", "greedy"))
        for method in ("before", "grpo", "gspo", "gigpo", "sampo")
        for found in [[row for row in runs("7_families", method) if row["task"] == task]]
    ]
    assert RATES.findall(rows[0]) == means
