import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_lightning.datamodules.prompting import PromptTemplate, TaggedAction, WholeMessage
from arl_lightning.protocols import ActionParser, PromptFormat
from arl_lightning.types import ArlError


def test_the_bare_template_is_the_observation() -> None:
    prompt: PromptFormat = PromptTemplate()
    assert prompt.system() is None
    assert prompt.message("a {room} {}", [("x", "up")], {}) == "a {room} {}"


def test_every_field_is_written_out() -> None:
    prompt = PromptTemplate(
        template="Turn {turn:02d}.\n{history}Now: {observation}\nChoose: {admissible_actions} {{json}}",
        system_text="You push boxes.",
        history_template="{turn}) {observation} -> {action}",
        history_separator="; ",
        history_block="Your last {count} turns: {turns}\n",
        action_separator=" | ",
    )
    info = {"turn": 4, "admissible_actions": ("up", "down")}
    assert prompt.system() == "You push boxes."
    assert prompt.message("O3", [("O1", "up"), ("O2", "down")], info) == (
        "Turn 04.\nYour last 2 turns: 2) O1 -> up; 3) O2 -> down\nNow: O3\nChoose: up | down {json}"
    )


def test_an_empty_history_leaves_out_its_words_too() -> None:
    prompt = PromptTemplate("{history}Now: {observation}", history_block="Earlier: {turns}.\n")
    assert prompt.message("O1", [], {}) == "Now: O1"
    assert prompt.message("O2", [("O1", "up")], {}) == "Earlier: up.\nNow: O2"


def test_texts_of_play_are_never_read_as_templates() -> None:
    prompt = PromptTemplate("{history}{observation}")
    assert prompt.message("{turn}", [("", "{observation}")], {}) == "{observation}\n{turn}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"template": "{observaton}"}, r"template names the unknown field \{observaton\}"),
        ({"template": "{}"}, r"unknown field \{\}"),
        ({"template": "{observation.__class__}"}, r"unknown field \{observation.__class__\}"),
        ({"template": "{turn:{width}}"}, r"unknown field \{width\}"),
        ({"template": "{observation"}, "malformed"),
        ({"history_template": "{history}"}, r"history_template names the unknown field \{history\}"),
        ({"history_block": "{lines}"}, r"history_block names the unknown field \{lines\}"),
        ({"history_block": "Earlier:"}, r"must name \{turns\}"),
    ],
)
def test_a_bad_template_is_refused_when_made(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ArlError, match=message):
        PromptTemplate(**arguments)


def test_admissible_actions_that_no_environment_lists_are_an_error() -> None:
    prompt = PromptTemplate("{observation} {admissible_actions}")
    with pytest.raises(ArlError, match="lists none"):
        prompt.message("O", [], {"admissible_actions": None})


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<action>up</action>", "up"),
        (" \n<action> go to\nshelf 1 </action>\n", "go to\nshelf 1"),
        ("<action>a < b > </b> <Action></action>", "a < b > </b> <Action>"),
        ("up", None),
        ("<action>up", None),
        ("<action></action>", None),
        ("<action> \n </action>", None),
        ("I go <action>up</action>", None),
        ("<action>up</action>.", None),
        ("<action>up</action><action>up</action>", None),
        ("<action><action>up</action></action>", None),
        ("<action>up</action></action>", None),
        ("<action>up<action></action>", None),
        ("<ACTION>up</ACTION>", None),
        ("<action >up</action>", None),
        ("<think>t</think><action>up</action>", None),
        ("<action><think>t</think>up</action>", None),
        ("", None),
    ],
)
def test_without_thought_nothing_but_the_action_block_is_read(response: str, action: str | None) -> None:
    parser: ActionParser = TaggedAction()
    assert parser.parse(response) == action


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<think>The box\nis 1 < 2.</think><action>up</action>", "up"),
        ("\n<think>t</think>\n\n<action> up </action> ", "up"),
        ("<think></think><action>up</action>", "up"),
        ("<action>up</action>", None),
        ("<think>t</think>", None),
        ("<think>t</think>so<action>up</action>", None),
        ("<action>up</action><think>t</think>", None),
        ("<think>t</think><think>t</think><action>up</action>", None),
        ("<think><think>t</think></think><action>up</action>", None),
        ("<think>I could <action>down</action></think><action>up</action>", None),
        ("<think>t<action>up</action>", None),
        ("<think>t</think><action>up</action>!", None),
    ],
)
def test_with_thought_both_blocks_are_demanded_in_order(response: str, action: str | None) -> None:
    assert TaggedAction(think=True).parse(response) == action


def test_other_tags_can_be_named() -> None:
    parser = TaggedAction(think=True, action_tag="move", think_tag="why")
    assert parser.parse("<why><action>x</action></why><move>up</move>") == "up"
    assert parser.parse("<think>t</think><action>up</action>") is None
    with pytest.raises(ArlError, match="cannot be a tag"):
        TaggedAction(action_tag="a|b")
    with pytest.raises(ArlError, match="tags must differ"):
        TaggedAction(action_tag="think")


def test_an_overlong_action_is_void() -> None:
    parser = TaggedAction(max_length=3)
    assert parser.parse("<action> abc </action>") == "abc"
    assert parser.parse("<action>abcd</action>") is None


@pytest.mark.parametrize(("think", "written"), [(False, ""), (True, "<think></think>")])
def test_write_gives_the_canonical_response(think: bool, written: str) -> None:
    parser = TaggedAction(think=think)
    assert parser.write("go to shelf 1") == written + "<action>go to shelf 1</action>"
    for impossible in ("", " up", "</action>", "<think>", "x" * 1001):
        with pytest.raises(ArlError, match="cannot be written"):
            parser.write(impossible)


@given(st.text(alphabet="ab <>/\n", max_size=20), st.booleans())
def test_what_is_written_is_read_back(action: str, think: bool) -> None:
    parser = TaggedAction(think=think)
    if action == action.strip() and action:
        assert parser.parse(parser.write(action)) == action


@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize(
    "unit", [" ", "<", "</", "<action>", "</action", "</action>", "<think>", "</think>", "<think> ", "a", "\n<", "<a>"]
)
@pytest.mark.parametrize("start", ["", "<action>", "<think>", "<think>t</think><action>", "<think>t</think>"])
def test_hostile_length_takes_linear_time(think: bool, unit: str, start: str) -> None:
    response = start + unit * (100_000 // len(unit))
    before = time.perf_counter()
    assert TaggedAction(think=think).parse(response) is None
    assert time.perf_counter() - before < 1.0


def test_the_task_is_named_by_the_environment_or_refused_in_one_sentence() -> None:
    prompt = PromptTemplate("Do {task}. {observation}")
    assert prompt.message("O1", [], {"task": "the dishes"}) == "Do the dishes. O1"
    with pytest.raises(ArlError, match=r"names \{task\} but this environment's info has no 'task'"):
        prompt.message("O1", [], {})


def test_a_whole_message_is_the_action() -> None:
    parser: ActionParser = WholeMessage(max_length=12)
    assert parser.parse("\n print(1) \n") == "print(1)"
    assert parser.parse("  \n") is None
    assert parser.parse("x" * 13) is None
    assert parser.write("x" * 12) == "x" * 12
    for action in ("", " x", "x" * 13):
        with pytest.raises(ArlError, match="cannot be a message"):
            parser.write(action)
    with pytest.raises(ArlError, match="at least 1"):
        WholeMessage(max_length=0)
