"""What a message of the model asks for: a program to run, an answer in a box, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROGRAM = re.compile(r"```(?:python|py)[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
_UNFINISHED = re.compile(r"```(?:python|py)[ \t]*\r?\n.*", re.DOTALL | re.IGNORECASE)
_MARK = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # what opens or closes a brace, or hides the next character


@dataclass(frozen=True, slots=True)
class Message:
    """A program, or else an answer; a message with neither is void."""

    program: str | None
    answer: str | None

    @property
    def void(self) -> bool:
        """True when there is nothing to run and nothing to grade."""
        return self.program is None and self.answer is None


def read_message(text: str) -> Message:
    r"""The program or the answer of `text`.

    A program is a closed block that begins with three backticks and `python` or `py`. Of several blocks the last one is
    the program: it is what the model settled on, and each block runs alone. Bare blocks, blocks of other languages,
    unclosed and blank blocks are no programs. An answer is what the last complete `\boxed{…}` outside Python blocks
    holds. Beside a program a box does not count: it was written before the program's output could be seen. What stands
    before the last `</think>` is reasoning and is not read.

    Source: void turns follow SimpleTIR, arXiv:2509.02479.
    """
    spoken = text.rpartition("</think>")[2]
    programs = [block for block in _PROGRAM.findall(spoken) if block.strip()]
    if programs:
        return Message(programs[-1], None)
    return Message(None, last_box(_UNFINISHED.sub("", _PROGRAM.sub("", spoken))))


def last_box(text: str) -> str | None:
    r"""What the last complete `\boxed{…}` of `text` holds, outer blanks aside; None without one.

    Braces are balanced; escaped braces, as in `\{1, 2\}`, are characters like any other. Of boxes in a box the
    innermost is the last.
    """
    open_braces: list[tuple[int, bool]] = []  # where each began to hold text, and whether it is a box's
    held = (-1, -1)
    for mark in _MARK.finditer(text):
        if mark[0].endswith("{") and mark[0] != "\\{":
            open_braces.append((mark.end(), mark[0] != "{"))
        elif mark[0] == "}" and open_braces:
            begin, boxes = open_braces.pop()
            if boxes and begin > held[0]:
                held = (begin, mark.start())
    return None if held[0] < 0 else text[slice(*held)].strip()
