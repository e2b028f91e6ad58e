from typing import get_args

import choosing
import pytest

from headrace.endpoints import StrategyName


@pytest.mark.parametrize("situation", choosing.SITUATIONS)
@pytest.mark.parametrize("name", get_args(StrategyName))
def test_every_choice_is_timed_in_every_situation(name: StrategyName, situation: str) -> None:
    seconds = choosing.measure(name, 10, situation, 30)
    assert len(seconds) == 30
    assert min(seconds) > 0
