"""What stands around the tokens of play: the user's message of a turn, and the strict reading of its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from arl_lightning.types import ArlError

_MESSAGE_FIELDS = {"observation", "history", "admissible_actions", "turn", "task"}


class PromptTemplate:
    """Writes a turn's user message from templates in the syntax of `str.format`; literal braces are doubled.

    Args:
        template: the message; may name {observation}, {history}, {admissible_actions}, {turn} (counted from 1) and
            {task}, which is what the environment's `info["task"]` says is to be done.
        system_text: text of the system message, or None to send none.
        history_template: one earlier turn; may name {observation}, {action} and {turn}.
        history_separator: text between earlier turns.
        history_block: what {history} becomes; must name {turns}, may name {count}. It is left out, its words
            included, while there are no earlier turns.
        action_separator: text between admissible actions.
    """

    def __init__(
        self,
        template: str = "{observation}",
        system_text: str | None = None,
        history_template: str = "{action}",
        history_separator: str = "\n",
        history_block: str = "{turns}\n",
        action_separator: str = "\n",
    ) -> None:
        self._fields = _fields("template", template, _MESSAGE_FIELDS)
        self._history_fields = _fields("history_template", history_template, {"observation", "action", "turn"})
        if "turns" not in _fields("history_block", history_block, {"turns", "count"}):
            raise ArlError(f"history_block {history_block!r} must name {{turns}}, or no earlier turn would be shown")
        self.template = template
        self.system_text = system_text
        self.history_template = history_template
        self.history_separator = history_separator
        self.history_block = history_block
        self.action_separator = action_separator

    def system(self) -> str | None:
        """System text, or None for no system message."""
        return self.system_text

    def message(self, observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """User text of the present turn.

        Args:
            observation: what the environment shows now.
            history: earlier (observation, action) pairs, oldest first, the last one of the previous turn.
            info: the environment's; a context adds `turn`, the number of the present turn from 1, which {turn} needs.

        Raises:
            ArlError: the template names {admissible_actions} or {task} and the environment has none.
        """
        values: dict[str, Any] = {"observation": observation}
        if "turn" in self._fields:
            values["turn"] = info["turn"]
        if "task" in self._fields:
            if "task" not in info:
                raise ArlError("the template names {task} but this environment's info has no 'task': remove it")
            values["task"] = info["task"]
        if "history" in self._fields:
            values["history"] = self._history(history, info)
        if "admissible_actions" in self._fields:
            actions = info["admissible_actions"]
            if actions is None:
                raise ArlError("the template names {admissible_actions} but this environment lists none: remove it")
            values["admissible_actions"] = self.action_separator.join(actions)
        return self.template.format(**values)

    def _history(self, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        if not history:
            return ""
        first_turn = info["turn"] - len(history) if "turn" in self._history_fields else 0
        lines = [
            self.history_template.format(observation=observation, action=action, turn=turn)
            for turn, (observation, action) in enumerate(history, start=first_turn)
        ]
        return self.history_block.format(turns=self.history_separator.join(lines), count=len(lines))


def _fields(name: str, template: str, allowed: set[str]) -> set[str]:
    """The fields that `template` names, all of them in `allowed`."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as fault:
        raise ArlError(f"{name} {template!r} is malformed ({fault}): write a literal brace twice") from fault
    named: set[str] = set()
    for _, field, layout, _ in parts:
        if field is None:
            continue
        if field not in allowed:
            raise ArlError(f"{name} names the unknown field {{{field}}}: it may name {sorted(allowed)}")
        named |= {field} | _fields(name, layout or "", allowed)
    return named


class TaggedAction:
    """Reads the action from a response that is `<action>…</action>`, after `<think>…</think>` where demanded.

    White space around the blocks and around the action is allowed; anything else, a tag inside a block, an empty or
    an overlong action make the response void. An empty thought is a thought.

    Args:
        think: whether a thought must come before the action.
        action_tag: name of the action's tag.
        think_tag: name of the thought's tag.
        max_length: longest action, in characters.
    """

    def __init__(
        self, think: bool = False, action_tag: str = "action", think_tag: str = "think", max_length: int = 1000
    ) -> None:
        for tag in (action_tag, think_tag):
            if not re.fullmatch(r"[A-Za-z][\w-]*", tag):
                raise ArlError(f"{tag!r} cannot be a tag: use a letter, then letters, digits, `_` or `-`")
        if action_tag == think_tag or max_length < 1:
            raise ArlError(f"tags must differ and max_length be positive: {action_tag!r}, {think_tag!r}, {max_length}")
        self.think = think
        self.action_tag = action_tag
        self.think_tag = think_tag
        self.max_length = max_length
        # possessive `++` and `*+` never give back, so that reading takes time linear in the response
        content = rf"(?:[^<]++|<(?!/?(?:{action_tag}|{think_tag})>))*+"
        thought = rf"<{think_tag}>{content}</{think_tag}>\s*+" if think else ""
        self._form = re.compile(rf"\s*+{thought}<{action_tag}>({content})</{action_tag}>\s*+")

    def parse(self, response: str) -> str | None:
        """The action without white space around it, or None when the response has not exactly the demanded form."""
        read = self._form.fullmatch(response)
        action = read[1].strip() if read else ""
        return action if 0 < len(action) <= self.max_length else None

    def write(self, action: str) -> str:
        """The shortest response that `parse` reads as `action`; its thought, where demanded, is empty.

        Raises:
            ArlError: no response can say this action, e.g. since it holds a tag.
        """
        thought = f"<{self.think_tag}></{self.think_tag}>" if self.think else ""
        response = f"{thought}<{self.action_tag}>{action}</{self.action_tag}>"
        if self.parse(response) != action:
            raise ArlError(
                f"{action!r} cannot be written as an action: it must be 1 to {self.max_length} characters without "
                "white space at its ends and without tags"
            )
        return response


class WholeMessage:
    """Takes the response itself as the action, for environments that read messages, such as tool-integrated maths.

    Args:
        max_length: longest action, in characters; a longer response is void.
    """

    def __init__(self, max_length: int = 20_000) -> None:
        if max_length < 1:
            raise ArlError(f"max_length={max_length} must be at least 1")
        self.max_length = max_length

    def parse(self, response: str) -> str | None:
        """The response without white space around it, or None when nothing is left or it is too long."""
        action = response.strip()
        return action if 0 < len(action) <= self.max_length else None

    def write(self, action: str) -> str:
        """The action as it is.

        Raises:
            ArlError: it would not be read again as it is.
        """
        if self.parse(action) != action:
            raise ArlError(
                f"{action!r} cannot be a message: it must be 1 to {self.max_length} characters without white space at "
                "its ends"
            )
        return action
