"""Maths problems with question and answer columns, from JSONL, Parquet, or what `datasets` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from arl_lightning.envs.extras import load_extra
from arl_lightning.envs.tir_math.judges import Key
from arl_lightning.envs.tir_math.messages import last_box
from arl_lightning.envs.tir_math.problems import SPLIT_ENDS, Problem, digest, split_of
from arl_lightning.types import ArlError

_QUESTIONS = ("question", "problem")
_ANSWERS = ("answer", "solution")
_TYPES = ("type", "subject")
_SPLIT_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation"}
Row = Mapping[str, Any]


class TableProblems:
    """Problems of one split of a table. Seeds 0, 1, 2, … visit each of them once before any comes again.

    A split that the data set names itself keeps its rows. All other rows are dealt by a hash of the question among
    train, demonstration, and those of validation and test that the data set does not name; a question that is also in a
    held-out split of the data set stays there only.

    Args:
        splits: rows by the data set's own name of their split; "" for rows without.
        split: train, validation, test, demonstration, or all.
        columns: names of the question, answer and type columns; None takes the usual names.
        origin: the data set's name in messages.
    """

    def __init__(
        self, splits: Mapping[str, Sequence[Row]], split: str, columns: Sequence[str | None], origin: str
    ) -> None:
        named = {_SPLIT_ALIASES.get(name, name): rows for name, rows in splits.items()}
        held_out = [name for name in SPLIT_ENDS if name in named and name != "train"]
        loose = [name for name in named if name not in held_out]
        dealt: dict[str, tuple[str, Problem]] = {}
        for name in (*held_out, *loose):
            for number, row in enumerate(named[name]):
                problem = _problem(row, columns, f"row {number} of {origin}")
                share = name if name in held_out else split_of(problem.question)
                home = "train" if share in held_out and name in loose else share
                dealt.setdefault(problem.question, (home, problem))
        kept = [problem for home, problem in dealt.values() if split in ("all", home)]
        if not kept:
            raise ArlError(f"{origin} has no problem for the split {split!r}: choose another, or add problems.")
        # By hash, so that the first seeds are a fair sample of a table that is sorted by type or difficulty.
        self._problems = sorted(kept, key=lambda problem: (digest(problem.question), problem.question))

    def __len__(self) -> int:
        """Number of problems of the split."""
        return len(self._problems)

    def problem(self, seed: int) -> Problem:
        """The problem of the seed, the same in each process."""
        return self._problems[seed % len(self._problems)]


@lru_cache(maxsize=16)
def table_problems(
    origin: str, subset: str | None, split: str, question: str | None, answer: str | None, kind: str | None
) -> TableProblems:
    """The problems of a file, folder or hub name, read once a process and shared by all environments.

    Args:
        origin: path of a `.jsonl` or `.parquet` file or of a folder that `datasets` saved, or a name on the hub.
        subset: configuration of a data set on the hub, such as GSM8K's `main`.
        split: train, validation, test, demonstration, or all.
        question: column of the problem's text; None takes `question` or `problem`.
        answer: column of the answer; None takes `answer` or `solution`.
        kind: column of the task type; None takes `type` or `subject` if there is one.

    Raises:
        ArlError: it cannot be read, or lacks a column.
    """
    return TableProblems(_read(origin, subset), split, (question, answer, kind), origin)


def read_answer(text: str) -> str:
    r"""The answer in an answer or solution column: after GSM8K's `####`, or in the last `\boxed{…}`, or all of it."""
    if "####" in text:
        return text.rpartition("####")[2].strip()
    boxed = last_box(text)
    return text.strip() if boxed is None else boxed


def _read(origin: str, subset: str | None) -> Mapping[str, Sequence[Row]]:
    path = Path(origin).expanduser()
    if path.suffix in (".jsonl", ".parquet"):
        if not path.is_file():
            raise ArlError(f"There is no file {origin}: `problems` names a .jsonl or .parquet file that exists.")
        return {"": list(_jsonl(path)) if path.suffix == ".jsonl" else _parquet(path)}
    datasets = load_extra("datasets", extra="math")
    try:
        found = datasets.load_from_disk(str(path)) if path.is_dir() else datasets.load_dataset(origin, subset)
    except (OSError, ValueError) as error:
        raise ArlError(
            f"`datasets` cannot load {origin}: name a .jsonl or .parquet file, a folder from save_to_disk, or a "
            f"data set on the hub that can be reached ({str(error).partition(chr(10))[0]})."
        ) from error
    return dict(found) if isinstance(found, Mapping) else {"": found}


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ArlError(f"Line {number} of {path} is not JSON: each line must hold one object.") from error
            if not isinstance(row, dict):
                raise ArlError(f"Line {number} of {path} is no JSON object: each line must hold one.")
            yield row


def _parquet(path: Path) -> Sequence[Row]:
    parquet, arrow = load_extra("pyarrow.parquet", extra="math"), load_extra("pyarrow", extra="math")
    try:
        rows: Sequence[Row] = parquet.read_table(path).to_pylist()
    except arrow.ArrowException as error:
        raise ArlError(f"{path} cannot be read as Parquet: write it again, or name another file.") from error
    return rows


def _problem(row: Row, columns: Sequence[str | None], where: str) -> Problem:
    question, answer, kind = columns
    text = _value(row, question, _QUESTIONS, where, "question_column")
    solution = _value(row, answer, _ANSWERS, where, "answer_column")
    type_column = kind or next((name for name in _TYPES if name in row), None)
    task_type = "math" if type_column is None else _value(row, type_column, (), where, "type_column")
    return Problem(text, Key(read_answer(solution)), task_type)


def _value(row: Row, column: str | None, usual: Iterable[str], where: str, argument: str) -> str:
    name = column or next((name for name in usual if name in row), None)
    if name is None or row.get(name) is None:
        missing = repr(name) if name else " or ".join(map(repr, usual))
        raise ArlError(f"No {missing} in {where}, which has {', '.join(sorted(row))}: set {argument}.")
    return str(row[name])
