"""Programs that compute the answer of a generated problem from its operands, never from its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

Operands = Mapping[str, Any]  # of a problem: its metadata, and its text as `question`
Writer = Callable[[Operands], str]

_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_ORDINALS = {"first": 0, "second": 1, "third": 2, "fourth": 3, "last": -1}
_COUNTED = re.compile(r"How many (\w+)s are there|occurrences of (\w+) from|how many times does (\w+) occur")
_COUNTDOWN = """\
numbers, target = {numbers}, {target}

def search(value, text, rest):
    if not rest:
        return text if value == target else None
    for i, n in enumerate(rest):
        steps = [(value + n, f"{{text}} + {{n}}"), (value - n, f"{{text}} - {{n}}"), (value * n, f"({{text}}) * {{n}}")]
        if value % n == 0:
            steps.append((value // n, f"({{text}}) / {{n}}"))
        for value_then, text_then in steps:
            found = search(value_then, text_then, rest[:i] + rest[i + 1:])
            if found:
                return found

for i, n in enumerate(numbers):
    found = search(n, str(n), numbers[:i] + numbers[i + 1:])
    if found:
        print(found)
        break"""


def write_program(generator: str, question: str, metadata: Mapping[str, Any]) -> str | None:
    """A program that prints the answer; None for a generator that has no expert."""
    writer = _WRITERS.get(generator)
    return None if writer is None else writer({**metadata, "question": question})


def program_message(program: str) -> str:
    """The message that runs the program."""
    return f"```python\n{program}\n```"


def answer_message(answer: str) -> str:
    """The message that gives the answer."""
    return f"\\boxed{{{answer}}}"


def _expression(operands: Operands) -> str:
    return f"print({operands['expression']})"


def _gcd(operands: Operands) -> str:
    return f"from math import gcd\nprint(gcd({_listed(operands)}))"


def _lcm(operands: Operands) -> str:
    return f"from math import lcm\nprint(lcm({_listed(operands)}))"


def _listed(operands: Operands) -> str:
    return ", ".join(map(str, operands["numbers"]))


def _prime_factorization(operands: Operands) -> str:
    return (
        "from sympy import factorint\n"
        f"factors = [p for p, k in sorted(factorint({operands['number']}).items()) for _ in range(k)]\n"
        'print(" × ".join(map(str, factors)))'
    )


def _fraction_simplification(operands: Operands) -> str:
    return (
        f"from math import gcd\na, b = {operands['numerator']}, {operands['denominator']}\n"
        'print(f"{a // gcd(a, b)}/{b // gcd(a, b)}")'
    )


def _simple_equations(operands: Operands) -> str:
    variable, (left, right) = operands["variable"], operands["equation"].split(" = ")
    return (
        f'from sympy import Eq, solve, symbols\n{variable} = symbols("{variable}")\n'
        f"print(solve(Eq({left}, {right}), {variable})[0])"
    )


def _polynomial_equations(operands: Operands) -> str:
    variable = operands["variable"]
    return (
        f'from sympy import real_roots, symbols\n{variable} = symbols("{variable}")\n'
        f"roots = sorted(set(real_roots({operands['polynomial_expr']})))\n"
        'print(", ".join(str(round(float(root), 4)) for root in roots))'
    )


def _countdown(operands: Operands) -> str:
    return _COUNTDOWN.format(numbers=operands["numbers"], target=operands["target"])


def _calendar_arithmetic(operands: Operands) -> str:
    return _CALENDAR_WRITERS[operands["task"]](operands)


def _weekday_offset(operands: Operands) -> str:
    later = f"{_day(operands, 'start_date')} + timedelta(days={operands['offset_days']})"
    return f'from datetime import date, timedelta\nprint(({later}).strftime("%A"))'


def _weekday_of_date(operands: Operands) -> str:
    return f'from datetime import date\nprint({_day(operands, "target_date")}.strftime("%A"))'


def _weekday_from_first(operands: Operands) -> str:
    since = f"({_day(operands, 'target_date')} - date({operands['year']}, 1, 1)).days"
    first = f'days.index("{operands["first_day"]}")'
    return f"from datetime import date\ndays = {_WEEKDAYS}\nprint(days[({first} + {since}) % 7])"


def _recurring_event(operands: Operands) -> str:
    weekday, month = _WEEKDAYS.index(operands["weekday"]), f"{operands['year']}, {operands['month']}"
    return (
        "from calendar import monthcalendar\n"
        f"days = [week[{weekday}] for week in monthcalendar({month}) if week[{weekday}]]\n"
        f"print(days[{_ORDINALS[operands['ordinal']]}])"
    )


def _count_days(operands: Operands) -> str:
    counted = _COUNTED.search(operands["question"])
    assert counted, operands["question"]
    return _counting(operands, f"== {_WEEKDAYS.index(next(filter(None, counted.groups())))}")


def _count_business_days(operands: Operands) -> str:
    return _counting(operands, "< 5")


def _counting(operands: Operands, which: str) -> str:
    return (
        "from datetime import date, timedelta\n"
        f"start, end = {_day(operands, 'start_date')}, {_day(operands, 'end_date')}\n"
        "days = [start + timedelta(days=i) for i in range((end - start).days + 1)]\n"
        f"print(sum(day.weekday() {which} for day in days))"
    )


def _is_leap_year(operands: Operands) -> str:
    return f'from calendar import isleap\nprint("Yes" if isleap({operands["year"]}) else "No")'


def _day(operands: Operands, name: str) -> str:
    day = date.fromisoformat(operands[name])
    return f"date({day.year}, {day.month}, {day.day})"


_CALENDAR_WRITERS: dict[str, Writer] = {
    "weekday_offset": _weekday_offset,
    "weekday_of_date": _weekday_of_date,
    "weekday_of_date_from_first_date": _weekday_from_first,
    "recurring_event_day": _recurring_event,
    "count_days": _count_days,
    "count_business_days": _count_business_days,
    "is_leap_year": _is_leap_year,
}
_WRITERS: dict[str, Writer] = {
    "chain_sum": _expression,
    "products": _expression,
    "gcd": _gcd,
    "lcm": _lcm,
    "prime_factorization": _prime_factorization,
    "fraction_simplification": _fraction_simplification,
    "simple_equations": _simple_equations,
    "polynomial_equations": _polynomial_equations,
    "calendar_arithmetic": _calendar_arithmetic,
    "countdown": _countdown,
}
