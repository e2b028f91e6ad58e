import asyncio
from itertools import islice, repeat
from pathlib import Path

import pytest
import swap
from harness.load import Sample
from harness.open_loop import Answer, OverloadError, open_loop, poisson
from harness.prompts import Prompts
from harness.random_weights import Q4_0, write_model
from harness.results import Machine
from harness.summary import Percentiles
from harness.swap_report import markdown, warnings
from harness.swap_results import STEADY, Found, Phase, SwapResults, phase, ratio
from harness.swapping import Plan, measure
from harness.timeline import Timeline
from harness.trend import Trend, trend
from tiny_model import SHAPE

from headrace.modelfiles.model import open_model

GOOD = Sample(10.0, [10.2, 10.3], 8, 2, version="bench@1", text="ab")


def timeline() -> Timeline:
    """Version 2 was asked for at 20 and active by 21, version 1 again between 30 and 31."""
    line = Timeline("bench@1")
    line.moved("bench@2", 20.0, 21.0)
    line.moved("bench@1", 30.0, 31.0)
    return line


def answer(sample: Sample = GOOD, **fields: object) -> Answer:
    named = {name: getattr(sample, name) for name in sample.__struct_fields__}
    return Answer(9.9, 0, Sample(**(named | fields)))


def judged(*answers: Answer) -> Phase:
    return phase("p", answers, 2, timeline(), {"bench@1": ["ab"], "bench@2": ["xy"]})


def test_random_moments_come_at_their_rate_and_again_from_the_same_seed() -> None:
    gaps = list(islice(poisson(50.0, seed=1), 10_000))
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert gaps == list(islice(poisson(50.0, seed=1), 10_000))


async def test_an_answer_that_takes_long_delays_no_other_request() -> None:
    may_answer = asyncio.Event()
    sent: list[int] = []

    async def send(prompt: int) -> Sample:
        sent.append(prompt)
        if len(sent) == 5:
            may_answer.set()
        await may_answer.wait()
        return GOOD

    async def until_five() -> None:
        await may_answer.wait()

    answers = await open_loop(send, repeat(0.001), 3, until_five())
    assert sent[:5] == [0, 1, 2, 0, 1]
    assert len(answers) == len(sent)


async def test_requests_that_pile_up_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.open_loop.MAX_OUT", 4)
    never = asyncio.Event()

    async def send(_: int) -> Sample:
        await never.wait()
        return GOOD

    async def forever() -> None:
        await never.wait()

    with pytest.raises(ExceptionGroup) as raised:
        await open_loop(send, repeat(0.0), 3, forever())
    assert raised.group_contains(OverloadError)


@pytest.mark.parametrize(
    ("version", "sent", "first_output", "is_allowed"),
    [
        ("bench@1", 1.0, 2.0, True),
        ("bench@2", 1.0, 19.9, False),
        ("bench@2", 19.0, 20.5, True),
        ("bench@1", 20.9, 25.0, True),
        ("bench@1", 21.1, 29.9, False),
        ("bench@1", 25.0, 30.5, True),
        ("bench@2", 31.1, 32.0, False),
        (None, 1.0, 2.0, False),
    ],
)
def test_a_version_may_answer_from_its_swap_s_request_to_the_next_one_s_answer(
    version: str | None, sent: float, first_output: float, *, is_allowed: bool
) -> None:
    assert timeline().allows(version, sent, first_output) is is_allowed


def test_a_good_answer_counts_from_the_moment_it_was_due() -> None:
    found = judged(answer())
    assert (found.num_requests, found.num_failed, found.num_wrong, found.num_mixed) == (1, 0, 0, 0)
    assert found.ttft.p50 == pytest.approx(300.0)
    assert found.late.p50 == pytest.approx(100.0)


def test_an_answer_of_a_version_that_was_not_active_is_wrong() -> None:
    assert judged(answer(version="bench@2", text="xy")).num_wrong == 1
    assert judged(answer(version=None)).num_wrong == 1


@pytest.mark.parametrize("text", ["ay", "xy", ""])
def test_an_answer_that_is_not_its_version_s_own_is_mixed(text: str) -> None:
    assert judged(answer(text=text)).num_mixed == 1


@pytest.mark.parametrize(
    "fields",
    [{"error": "HTTP 503"}, {"completion_tokens": 1}, {"arrivals": []}],
    ids=["refused", "cut", "empty"],
)
def test_whatever_is_no_complete_answer_has_failed(fields: dict[str, object]) -> None:
    found = judged(answer(**fields), answer())
    assert (found.num_failed, found.num_wrong, found.num_mixed) == (1, 0, 0)
    assert found.first_error


def test_a_trend_tells_growth_from_noise() -> None:
    steady = trend([100.0, 104.0, 96.0, 100.0] * 25)
    growing = trend([1000.0 + 8 * step + (step % 2) for step in range(100)])
    assert steady is not None
    assert growing is not None
    assert abs(steady.slope) < 2 * steady.error
    assert growing.slope == pytest.approx(8, rel=0.01)
    assert growing.slope > 100 * growing.error
    assert growing.noise == pytest.approx(0.5, rel=0.05)
    assert trend([1.0, 2.0]) is None


def found(**fields: object) -> Found:
    latency = {"ttft": Percentiles(50.0, 100.0), "late": Percentiles(0.1, 1.0)}
    counts = {"num_requests": 9, "num_failed": 0, "num_wrong": 0, "num_mixed": 0}
    slow = {**latency, "ttft": Percentiles(60.0, 150.0)}
    known: dict[str, object] = {
        "executor": "native-avx2",
        "num_telling": 60,
        "capacities": [10.0, 12.0],
        "rate": 6.0,
        "phases": [Phase(STEADY, **counts, **latency), Phase("swapping", **counts, **slow)],
        "moves": {"at rest": Percentiles(3.0, 4.0)},
        "num_moves": 20,
        "api_memory": Trend(2048.0, 1024.0, 10240.0),
        "worker_memory": None,
        "load_seconds": [2.0, 3.0],
        "load_memory": [1 << 20, 2 << 20],
    }
    return Found(**(known | fields))


def test_latency_is_compared_with_the_steady_phases() -> None:
    assert ratio(found(), "swapping") == pytest.approx(1.5)
    assert ratio(found(), "swapping", "p50") == pytest.approx(1.2)


def test_the_report_has_every_phase_and_what_changes_took() -> None:
    text = markdown(
        SwapResults(
            date="2026-11-21",
            model="tiny",
            command="python benchmarks/swap.py",
            machine=Machine("a processor", 2, ["avx2"], 2**34),
            versions={"headrace": "0.1.0"},
            precisions=["w8a16", "w4a16"],
            prompt_tokens=32,
            output_tokens=16,
            interval=1.0,
            found=found(),
        )
    )
    assert "60 prompts tell the versions apart" in text
    assert "| swapping | 9 | 0 | 0 | 0 | 60 / 150 | 1.20 / 1.50 |" in text
    assert "| swap or rollback at rest, p50 / p99 ms | 3.00 / 4.00 |" in text
    assert "over 20 | +2.00 ± 1.00 (points lie 10 KiB off the line) |" in text
    assert "| 2.5 |" in text
    assert list(warnings(found())) == []


def test_what_makes_a_number_doubtful_is_said() -> None:
    (steady, _) = found().phases
    bad = Phase("swapping", 9, 1, 0, None, steady.ttft, Percentiles(1.0, 50.0), "HTTP 503")
    said = list(warnings(found(phases=[bad])))
    assert len(said) == 3
    assert "HTTP 503" in said[0]


@pytest.mark.slow
async def test_a_real_server_is_swapped_under_load(vocabulary: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, SHAPE, vocabulary, kind=Q4_0, seed=0)
    flags = ["--out", str(tmp_path), "--precision", "bf16", "fp32", "--prompt-tokens", "8"]
    options = swap.parser().parse_args(flags)
    plan = Plan(
        prompts=Prompts(open_model(model).tokenizer, 8),
        output_tokens=8,
        share=0.15,
        warm_up=10,
        swaps=4,
        interval=0.1,
        steady=0.5,
        loads=1,
        capacity_seconds=0.2,
        seed=0,
    )
    result = await measure(swap.create_subject(model, options), plan)
    assert result.num_moves == 4
    assert len(result.load_memory) == 2
    assert all(each.num_requests for each in result.phases)
    assert not any(each.num_failed or each.num_wrong or each.num_mixed for each in result.phases)
