from pathlib import Path

import msgspec
import pytest
from harness.report import markdown, replace_section, warnings
from harness.results import Level, Machine, Plan, Results, SystemResult
from harness.summary import Percentiles, Summary

SUMMARY = Summary(
    num_requests=8,
    num_errors=0,
    tokens_per_second=100.0,
    spread=(90.0, 110.0),
    ttft=Percentiles(50.0, 80.0),
    inter_token=Percentiles(10.0, 20.0),
    time_per_output_token=Percentiles(10.0, 12.0),
    wrong_counts=0,
)
LEVEL = Level(concurrency=4, summary=SUMMARY, cpu_ms_per_token=5.0, client_cpu=0.01, idle_cpu=0.0)


def results(*levels: Level, **more: Level) -> Results:
    named = {"peer": levels[0], "ours": levels[-1], **more}
    return Results(
        date="2026-11-21",
        model="tiny",
        command="python benchmarks/serving.py",
        machine=Machine("a processor", 2, ["avx2"], 2**34),
        plan=Plan([4], 128, 128, 1, 10.0, 2),
        systems=[SystemResult(name, [4.0, 2.0], 10**9, [level]) for name, level in named.items()],
        skipped={"vllm": "it is not here"},
        versions={"openvino": "2026.4"},
    )


def changed(**fields: object) -> Level:
    return msgspec.structs.replace(LEVEL, summary=msgspec.structs.replace(SUMMARY, **fields))


def test_ratios_are_to_the_baseline_at_the_same_concurrency() -> None:
    text = markdown(results(LEVEL, changed(tokens_per_second=150.0)), "peer")
    assert "| ours | 4 | 150.0 (90.0 to 110.0) | 1.50 | 50 / 80 | 10.0 / 20.0 |" in text
    assert "| peer | 4 | 100.0 (90.0 to 110.0) | 1.00 |" in text


def test_without_the_baseline_there_is_no_ratio() -> None:
    assert "| peer | 4 | 100.0 (90.0 to 110.0) |  |" in markdown(results(LEVEL), "absent")


def test_the_first_and_the_median_start_are_told() -> None:
    assert "| peer | 1.00 | 4.0 | 3.0 |" in markdown(results(LEVEL), "peer")


def test_a_skipped_peer_is_named_with_its_reason() -> None:
    assert "vllm: skipped, it is not here." in markdown(results(LEVEL), "peer")


def test_good_numbers_have_no_warning() -> None:
    assert list(warnings(results(LEVEL))) == []


@pytest.mark.parametrize(
    ("level", "sentence"),
    [
        (changed(num_errors=2, first_error="HTTP 503"), "2 of 8 failed (HTTP 503)"),
        (changed(wrong_counts=3), "3 answers had another number of tokens"),
        (msgspec.structs.replace(LEVEL, client_cpu=0.5), "the client took 50% of a core"),
        (msgspec.structs.replace(LEVEL, missed_health=4), "4 questions for its health"),
        (msgspec.structs.replace(LEVEL, idle_cpu=0.3), "the idle systems took 30% of a core"),
    ],
)
def test_what_makes_a_number_doubtful_is_said(level: Level, sentence: str) -> None:
    found = list(warnings(results(LEVEL, level)))
    assert len(found) == 1
    assert found[0].startswith("ours at 4: ")
    assert sentence in found[0]


def test_results_survive_their_file() -> None:
    whole = results(LEVEL)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Results) == whole


def test_only_the_section_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    other = "<!-- other:begin -->\nkept\n<!-- other:end -->\n"
    page.write_text(f"{other}<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    for section in ("first", "second"):
        replace_section(page, "results", section)
    text = page.read_text()
    assert text.startswith(other)
    assert text.endswith("\nafter\n")
    assert "second" in text
    assert "old" not in text
    assert "first" not in text


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(ValueError, match="results:begin"):
        replace_section(page, "results", "new")
    assert page.read_text() == "nothing here\n"
