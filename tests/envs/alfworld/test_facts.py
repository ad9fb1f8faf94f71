from arl_lightning.envs.alfworld.facts import Condition, Facts

TYPES = {"apple": "object", "mug": "object", "fridge": "receptacle", "shelf": "receptacle"}
OBJECT, RECEPTACLE = ("o", "object"), ("r", "receptacle")
INSIDE = Condition("in", (OBJECT, RECEPTACLE), (("object", "receptacle"),))
OPEN = Condition("open", (RECEPTACLE,), (("receptacle",),))
NEAR = Condition("near", (OBJECT, ("p", "object")), (("object", "object"),))


def room() -> Facts:
    facts = Facts(TYPES)
    for fact in (("in", "mug", "shelf"), ("in", "apple", "fridge"), ("in", "apple", "shelf"), ("open", "fridge")):
        facts.add(fact)
    return facts


def test_answers_come_sorted_and_extend_the_binding() -> None:
    bound = {RECEPTACLE: "shelf"}
    assert list(room().answers((INSIDE,), bound)) == [{OBJECT: "apple", **bound}, {OBJECT: "mug", **bound}]
    assert bound == {RECEPTACLE: "shelf"}


def test_conditions_hold_together() -> None:
    assert list(room().answers((INSIDE, OPEN), {})) == [{OBJECT: "apple", RECEPTACLE: "fridge"}]
    assert list(room().answers((OPEN,), {RECEPTACLE: "shelf"})) == []


def test_no_condition_is_answered_by_the_binding_itself() -> None:
    assert list(room().answers((), {OBJECT: "mug"})) == [{OBJECT: "mug"}]


def test_different_placeholders_are_different_entities() -> None:
    facts = room()
    facts.add(("near", "apple", "apple"))
    assert list(facts.answers((NEAR,), {})) == []
    facts.add(("near", "apple", "mug"))
    assert list(facts.answers((NEAR,), {})) == [{OBJECT: "apple", ("p", "object"): "mug"}]


def test_signatures_come_in_their_order_before_the_names() -> None:
    anything = Condition("seen", (("x", "thing"),), (("receptacle",), ("object",)))
    facts = Facts(TYPES)
    for name in TYPES:
        facts.add(("seen", name))
    found = [answer["x", "thing"] for answer in facts.answers((anything,), {})]
    assert found == ["fridge", "shelf", "apple", "mug"]


def test_a_fact_can_be_taken_back() -> None:
    facts = room()
    facts.discard(("in", "apple", "shelf"))
    facts.discard(("in", "apple", "shelf"))
    assert facts.holding(["in"]) == (("in", "apple", "fridge"), ("in", "mug", "shelf"))
