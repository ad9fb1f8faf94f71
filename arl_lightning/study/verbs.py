"""`arl study`: run, report, search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from arl_lightning.study.cell_runner import CellRunner
from arl_lightning.study.cells import Cell, cell_of
from arl_lightning.study.definition import Study, read
from arl_lightning.study.search import Search, search_all
from arl_lightning.study.study_report import write_report
from arl_lightning.types import ArlError

Check = Callable[[Sequence[str], Sequence[str] | None], str]
"""Makes what the words after `arl` name, runs nothing, and says what memory it would take.

The second words are those of the start whose model it takes, where that is not there yet.
"""


def study_verbs(check: Check) -> dict[str, Any]:
    """The verbs by name, to be called from a command line.

    Args:
        check: what a dry run does with a command.
    """

    def run(file: str, output: str = "runs/study", jobs: int | None = None, dry_run: bool = False) -> None:
        """Runs every cell that is not finished: an `arl fit`, then an `arl test`, in processes of their own.

        What the methods of a task start from is tested, too.

        Interrupted cells go on from their checkpoints, and failed ones are tried once more, by every further call.
        Several calls may work on one study at the same time.

        Args:
            file: the study's YAML file.
            output: folder of all runs.
            jobs: cells at a time, one thread each; null for one a processor.
            dry_run: whether the commands are only parsed and their memory planned.
        """
        study = read(Study, file)
        if dry_run:
            _check_all(study, Path(output), check)
        else:
            _run_all([cell_of(study, *place, Path(output)) for place in study.cells()], jobs)

    return {"run": run, "report": report, "search": search}


def report(file: str, output: str = "runs/study") -> None:
    """Writes one HTML page, its pictures as PNGs, and a CSV of all runs, finished or not.

    Args:
        file: the study's YAML file.
        output: folder of all runs; the report is written into the folder of the study's name in there.
    """
    study = read(Study, file)
    print(f"wrote {write_report(study, Path(output))}")


def search(file: str, output: str = "runs/study") -> None:
    """Tries hyper-parameters of each method, equally often, and writes the best ones as overlays.

    A search that is called again goes on; several calls, on one machine or on many that share the storage, work on
    the same one.

    Args:
        file: the search's YAML file.
        output: folder of all runs; overlays are written into the folder of the search's name in there.
    """
    for path in search_all(read(Search, file), Path(output)):
        print(f"wrote {path}")


def _run_all(cells: Sequence[Cell], jobs: int | None) -> None:
    console = Console()
    total = len({cell.folder for cell in cells})
    ended: Counter[str] = Counter()

    def say(cell: Cell, how: str) -> None:
        if cell.tested:
            ended[how] += 1
        place = f"{ended.total()}/{total}" if cell.tested else "start"
        said = f": {cell.attempts()[-1]['said']}" if how == "failed" else ""
        console.print(f"[dim]{place}[/] {cell.label}, seed {cell.seed}: {how}{escape(said)}")

    CellRunner(jobs, say).run(cells)
    missing = {cell.folder: cell.status() for cell in cells if cell.status() != "finished"}
    if missing:
        counts = ", ".join(f"{number} {how}" for how, number in Counter(missing.values()).items())
        raise ArlError(f"{len(missing)} of {total} cells are not finished ({counts}): `arl study report` says why")


def _check_all(study: Study, root: Path, check: Check) -> None:
    """Every command of the first seed; other seeds differ in their number only."""
    cells = [cell_of(study, *place, root) for place in study.cells() if place[2] == study.seeds[0]]
    starts = {cell.start.folder: cell.start for cell in cells if cell.start}
    for cell in (*starts.values(), *cells):
        unmade = cell.start.words_of("fit") if cell.start and not cell.start.model.exists() else None
        try:
            print(f"{cell.label}: {check(cell.words_of('fit'), unmade)}")
        except ArlError as error:
            raise ArlError(f"{cell.label}: {error}") from error
    print(f"{len(starts)} starts and {len(cells)} cells a seed parse, {len(study.seeds)} seeds; nothing was run")
