import runpy
import shutil
from pathlib import Path

import msgspec
import pytest
from harness.gateways import GATEWAYS, Setup, create
from harness.peers import MODEL
from harness.report import replace_section
from harness.results import Machine
from harness.routing_report import markdown, warnings
from harness.routing_results import Answered, Cell, Round, RoutingResults, Shape, added
from harness.summary import Percentiles

from headrace.settings import load_settings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

WHOLE, STREAM = Shape(16, is_stream=False), Shape(64, is_stream=True)
ANSWERED = Answered(
    seconds=2.0,
    num_requests=2000,
    num_events=0,
    num_errors=0,
    first_error=None,
    num_connections=16,
    latency_ms=Percentiles(1.0, 2.0),
    first_event_ms=Percentiles(None, None),
    gap_ms=Percentiles(None, None),
    cpu=0.1,
)


def seen(gateway_cpu: float = 1.0, stub_cpu: float = 0.1, **fields: object) -> Round:
    return Round(msgspec.structs.replace(ANSWERED, **fields), gateway_cpu, stub_cpu)


def cell(gateway: str, *rounds: Round, shape: Shape = WHOLE) -> Cell:
    return Cell(gateway, shape, list(rounds))


def results(*cells: Cell, cores: tuple[int, int, int] = (1, 0, 0)) -> RoutingResults:
    return RoutingResults(
        date="2026-11-22",
        command="python benchmarks/routing.py",
        machine=Machine("a processor", 2, ["avx2"], 2**34),
        versions={"nginx": "1.22.1"},
        cores=cores,
        seconds=2.0,
        num_events=64,
        gap_us=1000,
        cells=list(cells),
        skipped={"smg": "it is not here"},
    )


DIRECT = cell("direct", seen(0.0, num_requests=8000, latency_ms=Percentiles(0.2, 0.5)))


def test_the_median_round_counts() -> None:
    it = cell("nginx", *(seen(num_requests=number) for number in (2000, 9000, 4000)))
    assert it.rate == 2000.0
    assert it.cpu_us == 500.0


def test_what_a_gateway_adds_is_the_difference_of_latencies() -> None:
    it = added(cell("nginx", seen()), DIRECT)
    assert (it.p50, it.p99) == (pytest.approx(0.8), pytest.approx(1.5))


def test_a_stream_is_judged_by_its_events() -> None:
    fields = {"num_events": 130_000, "first_event_ms": Percentiles(3.0, 4.0)}
    it = cell("nginx", seen(**fields), shape=STREAM)
    assert (it.rate, it.latency.p50) == (65_000.0, 3.0)


def test_a_row_tells_rate_latency_and_what_was_added() -> None:
    text = markdown(results(DIRECT, cell("nginx", seen())))
    assert (
        "| nginx | 16 | 1000 (1000 to 1000) | 0.250 | 1.000 / 2.000 | 0.800 / 1.500 "
        "| 1000.0 | 100% / 10% / 10% |" in text
    )
    assert "| direct | 16 | 4000 (4000 to 4000) | 1.000 | 0.200 / 0.500 |  |  |" in text
    assert "smg: skipped, it is not here." in text


def test_without_direct_there_is_no_comparison() -> None:
    assert "| 1000 (1000 to 1000) |  | 1.000 / 2.000 |  |" in markdown(
        results(cell("nginx", seen()))
    )


def test_errors_are_told() -> None:
    wrong = seen(num_errors=3, first_error="status 503")
    assert "nginx, whole answers at 16: 3 errors, the first: status 503." in warnings(
        results(cell("nginx", seen(), wrong))
    )


def test_a_client_or_a_stub_that_was_the_limit_is_told() -> None:
    slow = seen(0.5, 0.5, cpu=0.45)
    sentence = "nginx, whole answers at 16: the stub and this client were the limit"
    assert sentence in "".join(warnings(results(cell("nginx", slow))))
    assert not list(warnings(results(cell("nginx", slow), cores=(2, 1, 0))))
    assert not list(warnings(results(cell("direct", slow))))


@pytest.mark.skipif(shutil.which("taskset") is None, reason="there is no taskset")
def test_a_run_measures_what_is_there_and_writes_its_section(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "page.md"
    document.write_text("# Page\n\n<!-- routing:begin -->\n<!-- routing:end -->\nEnd\n")
    replace_section(document, "routing", "Not measured yet.")
    arguments = ["routing.py", "--rounds", "1", "--seconds", "0.2", "--connections", "2"]
    monkeypatch.setattr("sys.argv", [*arguments, "--out", str(programs), "--write", str(document)])
    assert runpy.run_path(str(BENCHMARKS / "routing.py"))["main"]() == 0
    text = document.read_text()
    found = msgspec.json.decode((programs / "routing.json").read_bytes(), type=RoutingResults)
    assert {each.gateway for each in found.cells} | set(found.skipped) == set(GATEWAYS)
    assert [each.errors for each in found.cells] == [[]] * len(found.cells)
    assert text.count("| direct | 2 |") == 2
    assert text.endswith("<!-- routing:end -->\nEnd\n")


def test_headrace_is_set_up_as_any_other_server(tmp_path: Path) -> None:
    upstream = "http://127.0.0.1:8001"
    gateway = create("headrace", Setup(folder=tmp_path, upstream=upstream, core=0))
    assert gateway.command is not None
    config = Path(gateway.command.arguments[-1])
    settings = load_settings(config, {})
    assert gateway.url == f"http://127.0.0.1:{settings.server.port}"
    (model,) = settings.models
    assert (model.name, model.source) == (MODEL, f"{upstream}/v1")
