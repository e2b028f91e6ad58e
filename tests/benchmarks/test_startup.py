from pathlib import Path

import pytest
import startup
from harness.random_weights import Q4_0, write_model
from harness.systems import StartError
from tiny_model import SHAPE


async def test_every_start_is_timed_up_to_its_answer(
    vocabulary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, SHAPE, vocabulary, kind=Q4_0, seed=0)
    options = startup.parser().parse_args([str(model), "--starts", "2", "--out", str(tmp_path)])
    starts = await startup.measure(options, ["--kv-cache-memory", "16MiB"])
    assert len(starts) == 2
    assert all(0 < start.told < start.answered for start in starts)
    assert capsys.readouterr().out.count("answered") == 2


async def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.gguf")
    options = startup.parser().parse_args([missing, "--out", str(tmp_path)])
    with pytest.raises(StartError, match=r"code 2.*missing\.gguf"):
        await startup.measure(options, [])
