from typing import Any

import msgspec
import pytest

from headrace.errors import InvalidRequestError
from headrace.routing.rollouts.plan import DEFAULT_STAGES, Guards, Plan

FINE: dict[str, Any] = {"name": "chat", "candidate": "chat@2", "guards": {"max_error_rate": 0.1}}


def plan(**changes: Any) -> Plan:
    fields = {**FINE, **changes}
    return Plan(**{**fields, "guards": Guards(**fields["guards"])})


def test_what_is_left_out_has_a_sensible_value() -> None:
    made = plan()
    assert made.stages == DEFAULT_STAGES
    assert (made.stage_seconds, made.longest_stage, made.shadow_percent) == (300.0, 3000.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        ({"candidate": "vision@2"}, "candidate", "expected a version of chat, got vision@2"),
        ({"candidate": "chat"}, "candidate", "expected a version of chat"),
        ({"guards": {}}, "guards", "expected at least one limit, got none"),
        ({"guards": {"max_error_rate": 0.0}}, "guards.max_error_rate", "above 0 and below 1"),
        ({"guards": {"max_error_rate": float("nan")}}, "guards.max_error_rate", "got nan"),
        ({"guards": {"max_error_increase": 1.0}}, "guards.max_error_increase", "below 1"),
        ({"guards": {"max_latency_ratio": 1.0}}, "guards.max_latency_ratio", "above 1, got 1"),
        ({"guards": {"max_ttft_ratio": float("inf")}}, "guards.max_ttft_ratio", "got inf"),
        ({"stages": ()}, "stages", "expected 1 to 20 of them, got 0"),
        ({"stages": tuple(range(1, 22))}, "stages", "got 21"),
        ({"stages": (0.0, 50.0)}, "stages.0", "above 0, up to 100, got 0"),
        ({"stages": (5.0, 101.0)}, "stages.1", "got 101"),
        ({"stages": (5.0, float("nan"))}, "stages.1", "got nan"),
        ({"stages": (10.0, 5.0)}, "stages.1", "more than the 10 before, got 5"),
        ({"stages": (5.0, 5.0)}, "stages.1", "more than the 5 before, got 5"),
        ({"stages": (100.0,)}, "stages.0", "expected below 100"),
        ({"stage_seconds": -1.0}, "stage_seconds", "got -1"),
        ({"stage_seconds": float("nan")}, "stage_seconds", "got nan"),
        ({"max_stage_seconds": 299.0}, "max_stage_seconds", r"300 \(stage_seconds\) to"),
        ({"max_stage_seconds": float("inf")}, "max_stage_seconds", "got inf"),
        ({"shadow_percent": 101.0}, "shadow_percent", "0 to 100, got 101"),
        ({"shadow_percent": float("nan")}, "shadow_percent", "got nan"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_that_names_the_field(
    changes: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        plan(**changes)
    assert caught.value.param == field
    assert caught.value.message.startswith(f"{field}: ")


def test_a_plan_outlives_being_json() -> None:
    made = plan(stages=(1.0, 2.5), max_stage_seconds=1e4, shadow_percent=3.0)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
