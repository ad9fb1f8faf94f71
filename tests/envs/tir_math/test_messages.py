import time

import pytest

from arl_lightning.envs.tir_math.messages import Message, last_box, read_message
from arl_lightning.types import INVALID_ACTION


def test_a_closed_python_block_is_the_program() -> None:
    assert read_message("I compute.\n```python\nprint(1)\n```\nSo.") == Message("print(1)\n", None)
    assert read_message("```Py\r\nprint(1)```") == Message("print(1)", None)


def test_of_two_programs_the_last_one_runs() -> None:
    assert read_message("```python\nprint(1)\n```\nno:\n```py\nprint(2)\n```") == Message("print(2)\n", None)


def test_a_box_beside_a_program_does_not_count() -> None:
    for text in ("```python\nprint(1)\n```\n\\boxed{1}", "\\boxed{1}\n```python\nprint(1)\n```"):
        assert read_message(text) == Message("print(1)\n", None)


@pytest.mark.parametrize(
    "text",
    [
        INVALID_ACTION,
        "",
        "The answer is 5.",
        "```\nprint(1)\n```",
        "```bash\nls\n```",
        "```python\nprint(1)",
        "```python\n  \n```",
        "```python\nprint('\\\\boxed{5}')",
        "\\boxed{5",
        "\\boxed 5",
    ],
)
def test_neither_program_nor_answer_is_void(text: str) -> None:
    assert read_message(text).void


def test_a_blank_program_does_not_hide_the_answer() -> None:
    assert read_message("```python\n\n```\n\\boxed{5}") == Message(None, "5")


def test_reasoning_is_not_read() -> None:
    assert read_message("<think>```python\nprint(1)\n```</think>\\boxed{2}") == Message(None, "2")
    assert read_message("<think>\\boxed{1}</think> hm").void


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("\\boxed{5}", "5"),
        ("so $\\boxed{ \\frac{1}{2} }$.", "\\frac{1}{2}"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{1} then \\boxed{2", "1"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
        ("\\boxed {7}", "7"),
        ("\\boxed{}", ""),
        ("\\boxed{\\boxed{3}}", "3"),
        ("boxed{5}", None),
    ],
)
def test_the_last_complete_box_is_read_with_balanced_braces(text: str, held: str | None) -> None:
    assert last_box(text) == held


def test_a_long_hostile_message_is_read_in_no_time() -> None:
    begin = time.process_time()
    for hostile in ("\\boxed{", "```python\n", "\\boxed{}", "{", "}"):
        read_message(hostile * 5_000)
    assert time.process_time() - begin < 2.0
