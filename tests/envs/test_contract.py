from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from arl_lightning.envs.contract import ContractError, check_text_env
from arl_lightning.protocols import TextEnv

instances = itertools.count()


class CountingEnv:
    """Keeps every law: a number that `add` and `double` change, ended at 100. Each broken twin changes one thing."""

    def __init__(self) -> None:
        self.number = 0
        self.instance = next(instances)
        self.resets = 0
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.resets += 1
        self.number = 3 + (seed or 0)
        return self.observation(), self.state()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        valid = action in ("add", "double")
        if valid:
            self.number = self.number + 1 if action == "add" else self.number * 2
        return self.observation(), 1.0, self.number >= 100, False, self.state() | {"action_valid": valid}

    def close(self) -> None:
        self.closed += 1

    def observation(self) -> str:
        return f"The number is {self.number}."

    def state(self) -> dict[str, Any]:
        return {
            "success": self.number >= 100,
            "state_key": self.number,
            "admissible_actions": ("add", "double"),
            "task_type": "counting",
        }


def assert_breaks(make: Callable[[], TextEnv], law: str) -> None:
    with pytest.raises(ContractError, match=law) as caught:
        check_text_env(make)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def with_state(**changed: Any) -> Callable[[], TextEnv]:
    class Broken(CountingEnv):
        def state(self) -> dict[str, Any]:
            return super().state() | changed

    return Broken


def with_step(change: Callable[[list[Any], CountingEnv, str], None]) -> Callable[[], TextEnv]:
    class Broken(CountingEnv):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            shown: list[Any] = list(super().step(action))
            change(shown, self, action)
            observation, reward, terminated, truncated, state = shown
            return observation, reward, terminated, truncated, state

    return Broken


def replacing(place: int, value: object) -> Callable[[], TextEnv]:
    return with_step(lambda shown, env, action: shown.__setitem__(place, value))


def test_a_lawful_environment_passes() -> None:
    check_text_env(CountingEnv)


def test_one_seed_is_enough_to_check_all_but_variety() -> None:
    check_text_env(CountingEnv, seeds=[4])


def test_environments_without_admissible_actions_are_played_with_the_given_ones() -> None:
    played: list[str] = []
    make = with_step(lambda shown, env, action: played.append(action))

    class Free(make):  # type: ignore[valid-type, misc]
        def state(self) -> dict[str, Any]:
            return dict(super().state()) | {"admissible_actions": None}

    check_text_env(Free, actions=["add"])
    assert set(played) == {"add", "invalid"}


def test_reset_repeats_itself_in_the_same_instance() -> None:
    class Broken(CountingEnv):
        def observation(self) -> str:
            return f"Reset number {self.resets}."

    assert_breaks(Broken, "again in the same instance must show the same, but observation differed")


def test_reset_is_the_same_in_a_fresh_instance() -> None:
    class Broken(CountingEnv):
        def state(self) -> dict[str, Any]:
            return super().state() | {"state_key": self.instance}

    assert_breaks(Broken, "in a fresh instance must show the same, but state_key differed")


def test_admissible_actions_repeat_with_the_seed() -> None:
    class Broken(CountingEnv):
        def state(self) -> dict[str, Any]:
            return super().state() | {"admissible_actions": ("add", "double")[:: (-1) ** self.resets]}

    assert_breaks(Broken, "must show the same, but admissible_actions differed")


@pytest.mark.parametrize("key", ["success", "state_key", "admissible_actions", "task_type"])
def test_every_key_is_present(key: str) -> None:
    class Broken(CountingEnv):
        def state(self) -> dict[str, Any]:
            return {name: value for name, value in super().state().items() if name != key}

    assert_breaks(Broken, f"must have the key '{key}'")


@pytest.mark.parametrize(
    ("key", "value", "law"),
    [
        ("success", 0, "must be a bool, not 0"),
        ("task_type", None, "must be a str, not None"),
        ("admissible_actions", ["add"], "must be a tuple of str or None"),
        ("admissible_actions", (1, 2), "must be a tuple of str or None"),
        ("state_key", [3], "must be hashable"),
        ("state_key", ([3],), "must be hashable"),
    ],
)
def test_every_key_has_its_type(key: str, value: object, law: str) -> None:
    assert_breaks(with_state(**{key: value}), law)


def test_observations_are_str() -> None:
    assert_breaks(replacing(0, b"bytes"), "The observation must be a str")


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1, None])
def test_rewards_are_finite_floats(reward: object) -> None:
    assert_breaks(replacing(1, reward), "Reward must be a finite float")


@pytest.mark.parametrize(("place", "name"), [(2, "Terminated"), (3, "Truncated")])
def test_ends_are_bool(place: int, name: str) -> None:
    assert_breaks(replacing(place, 0), f"{name} must be a bool, not 0")


def test_action_valid_is_told_after_each_step() -> None:
    assert_breaks(with_step(lambda shown, env, action: shown[4].pop("action_valid")), "must be a bool after a step")


def test_admissible_actions_are_admitted() -> None:
    assert_breaks(with_state(admissible_actions=("add", "halve")), "admissible action 'halve' must be reported")


def test_admissible_actions_are_admitted_later_on_too() -> None:
    def refuse(shown: list[Any], env: CountingEnv, action: str) -> None:
        shown[4]["action_valid"] &= env.number < 20

    assert_breaks(with_step(refuse), r"must be reported with action_valid True \(seed 0, step \d+\)")


def test_the_invalid_action_does_not_raise() -> None:
    def refuse(shown: list[Any], env: CountingEnv, action: str) -> None:
        if action == "invalid":
            raise KeyError(action)

    assert_breaks(with_step(refuse), r"INVALID_ACTION must not raise, but gave KeyError\('invalid'\)")


def test_the_invalid_action_changes_no_state() -> None:
    class Broken(CountingEnv):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            self.number += action == "invalid"
            return super().step(action)

    assert_breaks(Broken, "INVALID_ACTION must not change state_key")


def test_the_invalid_action_is_reported() -> None:
    assert_breaks(with_step(lambda shown, env, action: shown[4].update(action_valid=True)), "action_valid False")


def test_the_same_actions_give_the_same_transcript() -> None:
    def drift(shown: list[Any], env: CountingEnv, action: str) -> None:
        shown[1] = float(env.instance)

    assert_breaks(
        with_step(drift), r"The same seed and actions must show the same \(seed 0, step 1\), but reward differed"
    )


def test_seeds_differ() -> None:
    class Broken(CountingEnv):
        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            return super().reset(seed=0)

    assert_breaks(Broken, "Different seeds must differ at least once, but 3 agree")


def test_close_can_be_called_twice() -> None:
    class Broken(CountingEnv):
        def close(self) -> None:
            super().close()
            if self.closed > 1:
                raise RuntimeError("closed already")

    assert_breaks(Broken, "must be harmless when called twice")


def test_everything_that_was_made_is_closed() -> None:
    made: list[CountingEnv] = []

    def make() -> CountingEnv:
        made.append(CountingEnv())
        return made[-1]

    check_text_env(make)
    assert all(env.closed for env in made)
