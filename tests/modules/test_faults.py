"""One line of another library's message."""

import pytest

from arl_lightning.modules.faults import first_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", "ValueError"),
        ("one\ntwo", "one"),
        ("\n  one  \ntwo", "one  "),
        ("these:\n\ttwo\nthree", "these: two"),
        ("these:", "these: "),
    ],
)
def test_the_first_line_says_it(message: str, line: str) -> None:
    assert first_line(ValueError(message)) == line
