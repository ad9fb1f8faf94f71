import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import pytest

from arl_lightning.envs.tir_math.problems import SPLIT_ENDS, split_of
from arl_lightning.envs.tir_math.tables import TableProblems, read_answer, table_problems
from arl_lightning.types import ArlError

ROWS = [
    {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = <<{n}+{n}={2 * n}>>\n#### {2 * n}"} for n in range(60)
]


def load(origin: Path | str, split: str = "all", **columns: str) -> TableProblems:
    named = [columns.get(name) for name in ("question", "answer", "kind")]
    return table_problems(str(origin), None, split, *named)


def questions(source: TableProblems) -> set[str]:
    return {source.problem(seed).question for seed in range(len(source))}


def written(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path


def test_jsonl_parquet_and_saved_folders_give_the_same_problems(tmp_path: Path) -> None:
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet(str(tmp_path / "sums.parquet"))
    table.save_to_disk(str(tmp_path / "sums"))
    jsonl = load(written(tmp_path / "sums.jsonl", ROWS))
    for name in ("sums.parquet", "sums"):
        other = load(tmp_path / name)
        assert [other.problem(seed) for seed in range(60)] == [jsonl.problem(seed) for seed in range(60)]
    assert questions(jsonl) == {row["question"] for row in ROWS}
    assert {jsonl.problem(seed).task_type for seed in range(60)} == {"math"}
    problem = next(jsonl.problem(seed) for seed in range(60) if jsonl.problem(seed).question == "What is 7 + 7?")
    assert problem.key.answer == "14"


def test_seeds_visit_each_problem_once_in_an_order_that_the_file_s_does_not_decide(tmp_path: Path) -> None:
    one = load(written(tmp_path / "a.jsonl", ROWS))
    other = load(written(tmp_path / "b.jsonl", ROWS[::-1]))
    seen = [one.problem(seed).question for seed in range(60)]
    assert len(set(seen)) == 60
    assert seen == [other.problem(seed).question for seed in range(60)]
    assert seen != [row["question"] for row in ROWS]
    assert one.problem(60) == one.problem(0)


def test_a_table_without_splits_is_dealt_by_the_question(tmp_path: Path) -> None:
    path = written(tmp_path / "sums.jsonl", ROWS)
    dealt = {split: questions(load(path, split)) for split in SPLIT_ENDS}
    assert set.union(*dealt.values()) == {row["question"] for row in ROWS}
    assert sum(map(len, dealt.values())) == 60
    assert all(split_of(question) == split for split, held in dealt.items() for question in held)


def test_a_data_set_s_own_splits_are_kept_and_training_rows_fill_the_others(tmp_path: Path) -> None:
    own = datasets.DatasetDict(
        {
            "train": datasets.Dataset.from_list(ROWS[:50]),
            "test": datasets.Dataset.from_list([*ROWS[50:], ROWS[0]]),  # one question leaks into training
        }
    )
    own.save_to_disk(str(tmp_path / "own"))
    dealt = {split: questions(load(tmp_path / "own", split)) for split in SPLIT_ENDS}
    assert dealt["test"] == {row["question"] for row in [*ROWS[50:], ROWS[0]]}
    assert set.union(*dealt.values()) == {row["question"] for row in ROWS}
    assert sum(map(len, dealt.values())) == 60
    assert dealt["validation"] == {row["question"] for row in ROWS[1:50] if split_of(row["question"]) == "validation"}
    assert dealt["train"] >= {row["question"] for row in ROWS[1:50] if split_of(row["question"]) in ("train", "test")}


def test_columns_can_be_named_and_types_are_read(tmp_path: Path) -> None:
    row = {"text": "Half of one?", "key": 0.5, "level": "easy", "problem": "not this"}
    path = written(tmp_path / "named.jsonl", [row])
    problem = load(path, question="text", answer="key", kind="level").problem(0)
    assert (problem.question, problem.key.answer, problem.task_type) == ("Half of one?", "0.5", "easy")
    maths = {"problem": "One half?", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "type": "Algebra"}
    problem = load(written(tmp_path / "math.jsonl", [maths])).problem(0)
    assert (problem.question, problem.key.answer, problem.task_type) == ("One half?", "\\frac{1}{2}", "Algebra")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6 * 12 = 72\n#### 72", "72"),
        ("so $\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}"),
        (" 7 ", "7"),
        ("#### 1,000", "1,000"),
    ],
)
def test_the_answer_is_found_in_each_published_form(text: str, answer: str) -> None:
    assert read_answer(text) == answer


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArlError, match=r"no file .*none\.jsonl"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(ArlError, match=r"No 'question' or 'problem' in row 0 of .*, which has a: set question_column"):
        load(written(tmp_path / "a.jsonl", [{"a": 1}]))
    with pytest.raises(ArlError, match=r"No 'solved' in row 1 .*: set answer_column"):
        load(written(tmp_path / "b.jsonl", [{"question": "a", "solved": "1"}, {"question": "b"}]), answer="solved")
    with pytest.raises(ArlError, match=r"Line 1 of .* is no JSON object"):
        load(written(tmp_path / "c.jsonl", [[1]]))
    (tmp_path / "d.jsonl").write_text("{'question'}\n")
    with pytest.raises(ArlError, match=r"Line 1 of .* is not JSON"):
        load(tmp_path / "d.jsonl")
    (tmp_path / "e.parquet").write_text("nothing")
    with pytest.raises(ArlError, match="cannot be read as Parquet"):
        load(tmp_path / "e.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArlError, match="`datasets` cannot load"):
        load(tmp_path / "empty")
    with pytest.raises(ArlError, match="has no problem for the split 'test'"):
        load(written(tmp_path / "f.jsonl", [{"question": "only one", "answer": "1"}]), "test")


def test_a_hub_name_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ArlError, match="`datasets` cannot load nobody/no-such-problems"):
        load("nobody/no-such-problems")
