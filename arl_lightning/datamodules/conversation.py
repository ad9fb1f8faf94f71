"""Conversations as token ids: what the model is shown each turn, and the rows that play leaves for training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol

from arl_lightning.protocols import ChatTokenizer, PromptFormat
from arl_lightning.types import ArlError, Episode, Row, Turn

_ANSWER = "arl-sampled-answer"
"""Stands where sampled tokens go; text of the template after it is what a reply appends."""

_PLAIN = "<action>up</action>"
_REASONED = "<think>\nThe box is above.\n</think>\n\n<action>up</action>"
_PROBES = ((_PLAIN, _REASONED, _PLAIN, _REASONED), (_REASONED, _PLAIN, _REASONED, _PLAIN))


class ChatFormat:
    """The tokens that a chat template puts around sampled responses; sampled tokens never pass through it.

    Message text cannot forge a turn: where it spells a control token of the tokenizer, it gets a space after the
    token's first character (`< |im_end|>`).

    Args:
        tokenizer: the policy's tokenizer, with a chat template.
        system_text: text of the system message, or None to send none.
    """

    def __init__(self, tokenizer: ChatTokenizer, system_text: str | None = None) -> None:
        self._tokenizer = tokenizer
        scaffold = self._render([_user("?"), _assistant(_ANSWER), _user("?")], generation_prompt=False)
        # `special` alone is not enough: some tokenizers ship their turn marks as ordinary added tokens
        self._control_tokens = [
            str(token)
            for token in tokenizer.added_tokens_decoder.values()
            if len(str(token).strip()) > 1 and (token.special or str(token) in scaffold)
        ]
        self._opening = [] if system_text is None else [_message("system", self._inert(system_text))]

    @cached_property
    def terminator(self) -> str:
        """Text of the control token that ends the assistant's turn.

        Raises:
            ArlError: the template ends it without one.
        """
        closing = self.reply_text("?")
        found = [token for token in self._control_tokens if token in closing]
        if not found:
            raise ArlError(
                f"the chat template of {_name(self._tokenizer)} ends the assistant's turn without a special token, "
                "so use `WindowContext`, or a template with one"
            )
        return min(found, key=lambda token: (closing.index(token), -len(token)))

    @cached_property
    def terminator_id(self) -> int:
        """Id of the token that ends the assistant's turn."""
        return self._encode(self.terminator)[0]

    def first_text(self, user_text: str) -> str:
        """The whole first prompt, generation prompt included."""
        return self.conversation_text([user_text], [])

    def reply_text(self, user_text: str) -> str:
        """What the template puts after an assistant's answer, from its terminator to the generation prompt."""
        text = self.conversation_text(["?", user_text], [_ANSWER])
        _, found, reply = text.partition(_ANSWER)
        if not found:
            raise ArlError(
                f"the chat template of {_name(self._tokenizer)} leaves out an earlier answer, "
                "so use `WindowContext`, or a template that keeps earlier turns"
            )
        return reply

    def conversation_text(self, user_texts: Sequence[str], answers: Sequence[str]) -> str:
        """The template's own rendering of a conversation that ends with a user's message and the generation prompt."""
        users = [_user(self._inert(text)) for text in user_texts]
        pairs = chain.from_iterable(zip(users, map(_assistant, answers), strict=False))
        return self._render([*self._opening, *pairs, users[-1]], generation_prompt=True)

    def first_prompt(self, user_text: str) -> list[int]:
        """Token ids of the whole first prompt, generation prompt included."""
        return self._encode(self.first_text(user_text))

    def append_prompt(self, user_text: str, previous_finished: bool) -> list[int]:
        """Token ids to append after a sampled response: rest of its closing, user's message, generation prompt.

        Args:
            user_text: text of the new user's message.
            previous_finished: whether the response's last token is the terminator; if not, the terminator comes first.
        """
        reply = self.reply_text(user_text)
        token_ids = self._encode(reply[reply.index(self.terminator) :])
        return token_ids[1:] if previous_finished else token_ids

    def _render(self, conversation: list[dict[str, str]], generation_prompt: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=generation_prompt
        )
        return text

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _inert(self, text: str) -> str:
        spelled = [re.escape(token) for token in self._control_tokens if token in text]
        return re.sub(rf"(?s)(?=(?:{'|'.join(spelled)})).", r"\g<0> ", text) if spelled else text


def check_prefix_preserving(tokenizer: ChatTokenizer, system_text: str | None = None) -> None:
    """The template keeps earlier turns as they were, over four turns with and without reasoning, or this raises.

    Args:
        tokenizer: the tokenizer whose chat template is checked.
        system_text: text of the system message, or None to send none.

    Raises:
        ArlError: an earlier turn is rendered otherwise once a later one follows.
    """
    chat = ChatFormat(tokenizer, system_text)
    for answers in _PROBES:
        users = [f"state {turn}" for turn in range(len(answers) + 1)]
        grown = chat.first_text(users[0])
        for turn, answer in enumerate(answers, start=1):
            grown += answer + chat.reply_text(users[turn])
            if chat.conversation_text(users[: turn + 1], answers[:turn]) != grown:
                raise ArlError(
                    f"the chat template of {_name(tokenizer)} changes earlier turns when a conversation grows "
                    "(many drop earlier reasoning), so use `WindowContext`, or a template that keeps earlier turns"
                )


class TurnPrompt(NamedTuple):
    """The prompt of a turn: what to record as `Turn.prompt_ids`, and all that the model is conditioned on."""

    fed_ids: tuple[int, ...]
    full_ids: tuple[int, ...]


class Dialogue(Protocol):
    """A context that knows its tokenizer and its prompt; it holds no state of any episode."""

    @property
    def grows(self) -> bool:
        """Whether each prompt begins with the one before it and the response."""
        ...

    def next_prompt(self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]) -> TurnPrompt:
        """The prompt that follows `turns`, the earlier turns of the same episode, when `observation` is seen."""
        ...

    def rows(self, episode: Episode, first_turn: int) -> list[Row]:
        """The episode's rows; its turns are numbered from `first_turn`, and each turn is a segment of its own."""
        ...


class Context(Protocol):
    """Decides what of an episode the model sees at a turn, and so what makes a row."""

    def bind(self, tokenizer: ChatTokenizer, prompt: PromptFormat) -> Dialogue:
        """The same context for one tokenizer and one prompt."""
        ...


class WindowContext:
    """Each turn is a fresh one-message conversation that recalls the last turns, and a row of its own.

    Works with every chat template, since no answer of the model is ever shown through it.

    Args:
        history_window: number of earlier turns that the prompt may tell of; 0 tells of none.
    """

    def __init__(self, history_window: int = 2) -> None:
        if history_window < 0:
            raise ArlError(f"history_window={history_window} must be at least 0")
        self.history_window = history_window

    def bind(self, tokenizer: ChatTokenizer, prompt: PromptFormat) -> Dialogue:
        """The same context for one tokenizer and one prompt."""
        return _WindowDialogue(ChatFormat(tokenizer, prompt.system()), prompt, self.history_window)


class FullContext:
    """The episode is one conversation that only grows, and one row; prompts recall nothing, since all is there."""

    def bind(self, tokenizer: ChatTokenizer, prompt: PromptFormat) -> Dialogue:
        """The same context for one tokenizer and one prompt.

        Raises:
            ArlError: the chat template does not keep earlier turns as they were, or ends them without a special token.
        """
        check_prefix_preserving(tokenizer, prompt.system())
        return _FullDialogue(ChatFormat(tokenizer, prompt.system()), prompt)


class _WindowDialogue:
    grows = False

    def __init__(self, chat: ChatFormat, prompt: PromptFormat, history_window: int) -> None:
        self._chat = chat
        self._prompt = prompt
        self._history_window = history_window

    def next_prompt(self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]) -> TurnPrompt:
        recalled = turns[max(len(turns) - self._history_window, 0) :]
        history = [(turn.observation, turn.action) for turn in recalled]
        user_text = self._prompt.message(observation, history, {**info, "turn": len(turns) + 1})
        prompt_ids = tuple(self._chat.first_prompt(user_text))
        return TurnPrompt(prompt_ids, prompt_ids)

    def rows(self, episode: Episode, first_turn: int) -> list[Row]:
        return [_row([turn], number) for number, turn in enumerate(episode.turns, start=first_turn)]


class _FullDialogue:
    grows = True

    def __init__(self, chat: ChatFormat, prompt: PromptFormat) -> None:
        self._chat = chat
        self._prompt = prompt
        self._terminator_id = chat.terminator_id

    def next_prompt(self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]) -> TurnPrompt:
        user_text = self._prompt.message(observation, (), {**info, "turn": len(turns) + 1})
        if not turns:
            prompt_ids = tuple(self._chat.first_prompt(user_text))
            return TurnPrompt(prompt_ids, prompt_ids)
        # a cut response has no end, and a secondary end token is not the template's: both get the terminator, untrained
        closed = turns[-1].completion.token_ids[-1:] == (self._terminator_id,)
        fed_ids = tuple(self._chat.append_prompt(user_text, previous_finished=closed))
        past_ids = chain.from_iterable(turn.prompt_ids + turn.completion.token_ids for turn in turns)
        return TurnPrompt(fed_ids, (*past_ids, *fed_ids))

    def rows(self, episode: Episode, first_turn: int) -> list[Row]:
        return [_row(episode.turns, first_turn)] if episode.turns else []


def _row(turns: Sequence[Turn], first_turn: int) -> Row:
    """One row of consecutive turns, its mask made from lengths: token values say nothing about who wrote them."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    turn_of_token: list[int] = []
    for number, turn in enumerate(turns, start=first_turn):
        prompt_length, response_length = len(turn.prompt_ids), len(turn.completion.token_ids)
        token_ids += turn.prompt_ids + turn.completion.token_ids
        logprobs += [0.0] * prompt_length + list(turn.completion.logprobs)
        turn_of_token += [-1] * prompt_length + [number] * response_length
    return Row(
        token_ids=tuple(token_ids),
        action_mask=tuple(number >= 0 for number in turn_of_token),
        behavior_logprobs=tuple(logprobs),
        turn_of_token=tuple(turn_of_token),
        segment_of_token=tuple(turn_of_token),
    )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _user(content: str) -> dict[str, str]:
    return _message("user", content)


def _assistant(content: str) -> dict[str, str]:
    return _message("assistant", content)


def _name(tokenizer: ChatTokenizer) -> str:
    return repr(tokenizer.name_or_path)
