"""What other libraries complain of, in one line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of the message, with the next where it ends in a colon; the kind of error where there is none."""
    head, _, rest = str(error).strip().partition("\n")
    if head.endswith(":"):
        head = f"{head} {rest.strip().partition(chr(10))[0]}"
    return head or type(error).__name__
