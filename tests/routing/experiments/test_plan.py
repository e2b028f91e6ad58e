from typing import Any

import msgspec
import pytest

from headrace.errors import InvalidRequestError
from headrace.routing.experiments.plan import Plan, Variant

TWO = (Variant("chat@1"), Variant("chat@2"))


def plan(**fields: Any) -> Plan:
    return Plan(**{"name": "chat", "variants": TWO, "metric": "success", **fields})


def test_what_is_left_out_has_a_default() -> None:
    made = plan()
    assert (made.alpha, made.min_samples, made.promote_winner) == (0.05, 500, False)
    assert made.model_ids == ["chat@1", "chat@2"]


def test_it_comes_back_from_json_as_it_was() -> None:
    made = plan(variants=(Variant("chat@1", 9.0), Variant("chat@3", 1.0)), alpha=0.01)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"alpha": 0.0}, "alpha", "got 0."),
        ({"alpha": 0.51}, "alpha", "up to 0.5"),
        ({"alpha": float("nan")}, "alpha", "got nan."),
        ({"min_samples": 0}, "min_samples", "1 to"),
        ({"variants": TWO[:1]}, "variants", "2 to 16 versions, got 1."),
        ({"variants": ()}, "variants", "got 0."),
        (
            {"variants": tuple(Variant(f"chat@{i}") for i in range(1, 18))},
            "variants",
            "got 17.",
        ),
        ({"variants": (TWO[0], TWO[0])}, "variants.1.model_id", "only once, got chat@1."),
        ({"variants": (TWO[0], Variant("vision@1"))}, "variants.1.model_id", "version of chat"),
        ({"variants": (Variant("chat"), TWO[1])}, "variants.0.model_id", "got chat."),
        ({"variants": (TWO[0], Variant("chat@01"))}, "variants.1.model_id", "version of chat"),
        (
            {"variants": (Variant("chat@1", 0), Variant("chat@2", 0))},
            "variants",
            "weights with a sum above 0",
        ),
        ({"variants": (TWO[0], Variant("chat@2", 0))}, "variants.1.weight", "above 0, got 0"),
        ({"variants": (Variant("chat@1", -1), TWO[1])}, "variants.0.weight", "0 or more, got -1"),
        (
            {"variants": (Variant("chat@1", float("inf")), TWO[1])},
            "variants.0.weight",
            "got inf.",
        ),
        (
            {"variants": (Variant("chat@1", 1e308), Variant("chat@2", 1e308))},
            "variants",
            "a finite sum, got inf.",
        ),
        ({"metric": "tokens"}, "metric", "one of success, latency, feedback, got tokens."),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        plan(**fields)
    assert error.value.param == param
    assert words in error.value.message
