"""One HTML page with pictures inside, the same pictures as PNGs, and a CSV of all runs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html import escape
from pathlib import Path

from arl_lightning.study.definition import Study
from arl_lightning.study.figures import CURVES, draw_curves, draw_diagnostics, draw_results
from arl_lightning.study.results import COLLAPSE, Run, cost, read_runs
from arl_lightning.study.statistics import RESAMPLES
from arl_lightning.study.tables import Frame, Tables

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
th { white-space: nowrap } img { max-width: 100% } pre { overflow-x: auto; background: #f6f6f6; padding: .6rem }
.note { color: #555; font-size: 13px }
"""
_STATISTICS = f"""
Brackets are 95 % percentile bootstrap intervals ({RESAMPLES:,} resamples of the seeds, task by task). With three or
five seeds such an interval is too narrow: it says how far these runs agree, not how far all runs would. Differences are
paired: runs of equal seed start from the same model and meet the same tasks. p is that of the paired t-test, and Holm's
correction is for all comparisons of its table. P(above) is the probability that a run of the method is above one of the
baseline. The interquartile mean leaves out the best and the worst quarter of the runs. Spread is the standard deviation
of success over the rollouts in the last fifth of training, as the mean over runs. `before` is the model that all
methods start from, tested as they are; where the seeds share one, it is tested once.
"""
_PREDICTIONS = """
A prediction holds when the interval of the paired difference lies wholly on its side, fails when it lies wholly on the
other, and is open otherwise; predictions are not corrected for their number.
"""
_CURVES = """
Running means of five rollouts: success, the share of valid actions, and the KL to the sampling policy of segments with
A < 0 and ratio < 1. Thin lines are seeds, the band goes from the lowest to the highest, the thick line is their
mean, and the dashed one that of the baseline.
"""


def write_report(study: Study, root: Path) -> Path:
    """The page, beside its pictures and `runs.csv`; cells that have no result are in it, too.

    Args:
        study: what was to be run.
        root: folder of all runs.
    """
    folder = root / study.name
    folder.mkdir(parents=True, exist_ok=True)
    runs = read_runs(study, root)
    tables = Tables(study, runs)
    tables.all_runs.to_csv(folder / "runs.csv", index=False, float_format="%.6g")
    body = "\n".join(_sections(study, runs, tables, folder))
    title = escape(study.name)
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    page = folder / "report.html"
    page.write_text(f"<!doctype html><html lang=en>{head}<h1>{title}</h1>\n{body}\n</html>\n", encoding="utf-8")
    return page


def _sections(study: Study, runs: list[Run], tables: Tables, folder: Path) -> Iterator[str]:
    finished = [run for run in runs if run.numbers]
    yield _paragraph(f"{len(finished)} of {len(runs)} runs are finished. {_origin(tables.all_runs)}")
    yield "<h2>Expected</h2>" + _paragraph(study.prediction)
    if study.predictions:
        yield "<h2>Expected and found</h2>" + _table(tables.predictions()) + _note(_PREDICTIONS)
    if finished:
        yield from _findings(study, finished, tables, folder)
    missing = tables.unfinished()
    if len(missing):
        yield "<h2>Runs without a result</h2>" + _table(missing)
    yield "<h2>Any run again</h2>" + "".join(map(_commands, runs))


def _findings(study: Study, finished: list[Run], tables: Tables, folder: Path) -> Iterator[str]:
    yield "<h2>Results</h2>" + _note(_STATISTICS)
    groups = {task: [task] for task in study.tasks}
    if len(groups) > 1:
        groups = {"all tasks together": list(study.tasks), **groups}
    for name, tasks in groups.items():
        if estimates := tables.estimates(study.measure, tasks):
            picture = folder / f"results_{name.replace(' ', '_')}.png"
            values = {method: tables.strata(method, study.measure, tasks) for method in estimates}
            draw_results(estimates, values, f"{study.measure}: runs, mean and 95 % interval", picture)
            yield f"<h3>{escape(name)}</h3>" + _table(tables.results(tasks)) + _image(picture)
    trained = [run for run in finished if run.curves]
    yield "<h2>Learning curves</h2>" + _note(_CURVES)
    for task in study.tasks:
        if drawn := [run for run in trained if run.task == task]:
            pictures = [folder / f"{name.split('/')[1]}_{task}.png" for name in CURVES]
            for name, picture in zip(CURVES, pictures, strict=True):
                draw_curves(drawn, study.baseline, name, picture)
            yield f"<h3>{escape(task)}</h3>" + "".join(map(_image, pictures))
    yield from _collapses(trained, tables, folder)
    total = sum(run.numbers["minutes"] for run in trained)
    hours, failed, interrupted = cost(tables.runs)
    said = (
        f"{total / 60:.1f} hours of training on one thread each; {hours:.1f} hours of processes in all, with start-up, "
        f"evaluation and clones. {failed} attempts failed and {interrupted} were interrupted. Minutes are of training."
    )
    yield "<h2>Cost</h2>" + _paragraph(said) + _table(tables.cost())


def _collapses(trained: list[Run], tables: Tables, folder: Path) -> Iterator[str]:
    yield "<h2>Collapsed runs</h2>" + _note(COLLAPSE) + _table(tables.collapses())
    if warnings := tables.warnings():
        yield _paragraph(warnings)
    fallen: dict[tuple[str, str], list[Run]] = {}
    for run in trained:
        if run.numbers.get("collapsed"):
            fallen.setdefault((run.task, run.method), []).append(run)
    for place, runs in fallen.items():
        draw_diagnostics(runs, picture := folder / f"collapse_{'_'.join(place)}.png")
        yield f"<details><summary>{escape(', '.join(place))}</summary>{_image(picture)}</details>"


def _origin(all_runs: Frame) -> str:
    """Which state of the code they are of."""
    known = all_runs[all_runs["revision"].notna()]
    revisions = [
        f"{revision[:10]}{' with changes' if dirty else ''}"
        for revision, dirty in known[["revision", "dirty"]].drop_duplicates().itertuples(index=False)
    ]
    return f"Git revisions: {', '.join(revisions)}." if revisions else "They record no git revision."


def _commands(run: Run) -> str:
    title = f"{run.task}, {run.method}, seed {run.cell.seed}"
    return f"<details><summary>{escape(title)}</summary><pre>{escape(run.cell.recreate())}</pre></details>"


def _table(frame: Frame) -> str:
    if not len(frame):
        return _paragraph("None.")
    return str(frame.to_html(index=False, border=0, na_rep="", float_format="{:,.6g}".format))


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _image(path: Path) -> str:
    coded = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{coded}">'
