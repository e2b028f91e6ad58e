import inspect

from headrace.cli.engine_flags import engine_flags
from headrace.settings import EngineSection


def test_every_engine_setting_is_a_flag() -> None:
    assert set(inspect.signature(engine_flags).parameters) == set(EngineSection.model_fields)


def test_only_what_was_said_is_there() -> None:
    assert engine_flags() == {}
    said = {"prefix_caching": False, "max_num_seqs": 1}
    assert engine_flags(prefix_caching=False, max_num_seqs=1) == said
