"""What the doctor finds: a verdict a check, one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.markup import escape
from rich.table import Table

from arl_lightning.modules.memory_plan import MemoryPlan


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    NOT_APPLICABLE = "not applicable"


_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILURE: "bold red", Verdict.NOT_APPLICABLE: "dim"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one check; `remedy` is empty where nothing is to be done."""

    verdict: Verdict
    sentence: str
    remedy: str = ""
    check: str = ""


def ok(sentence: str) -> Finding:
    """Nothing is wrong."""
    return Finding(Verdict.OK, sentence)


def warning(sentence: str, remedy: str) -> Finding:
    """Something to know about before hours are spent."""
    return Finding(Verdict.WARNING, sentence, remedy)


def failure(sentence: str, remedy: str) -> Finding:
    """Training would be wrong or fail."""
    return Finding(Verdict.FAILURE, sentence, remedy)


def not_applicable(reason: str) -> Finding:
    """The check has nothing to look at."""
    return Finding(Verdict.NOT_APPLICABLE, reason)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and the memory plan where one could be made."""

    findings: tuple[Finding, ...]
    plan: MemoryPlan | None = None

    @property
    def failed(self) -> bool:
        """Whether any check failed."""
        return any(finding.verdict is Verdict.FAILURE for finding in self.findings)

    def of(self, verdict: Verdict) -> Sequence[Finding]:
        """The findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]

    def table(self) -> Table:
        """The findings to read."""
        table = Table(title="arl doctor", show_lines=True)
        for column in ("check", "verdict", "found", "remedy"):
            table.add_column(column, overflow="fold")
        for found in self.findings:
            style = _STYLES[found.verdict]
            table.add_row(found.check, f"[{style}]{found.verdict}[/]", escape(found.sentence), escape(found.remedy))
        return table

    def as_dict(self) -> dict[str, Any]:
        """The findings for programs."""
        return {
            "failed": self.failed,
            "findings": [{**asdict(finding), "verdict": str(finding.verdict)} for finding in self.findings],
            "memory": None if self.plan is None else self.plan.as_dict(),
        }
