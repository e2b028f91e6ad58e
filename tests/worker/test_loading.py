"""Loading refuses a model that does not fit, before it takes memory for one."""

from pathlib import Path

import pytest

from headrace.errors import InsufficientMemoryError
from headrace.executors.config import ExecutorConfig
from headrace.worker import frames, loading
from headrace.worker.spec import WorkerSpec
from modelfiles.tiny import write_folder


class MadeError(Exception):
    """An executor was about to be made."""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSpec:
    def make(*_arguments: object) -> None:
        raise MadeError

    monkeypatch.setattr(loading, "create_executor", make)
    write_folder(tmp_path / "tiny")
    executor = ExecutorConfig(executor="openvino")
    return WorkerSpec(
        model_id="chat@2", source=str(tmp_path / "tiny"), state_dir=tmp_path, executor=executor
    )


def load(spec: WorkerSpec) -> None:
    loading.load(spec, lambda _phase, _share: None)


def test_a_model_that_does_not_fit_is_refused_before_an_executor_is_made(
    spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 64 << 20)
    with pytest.raises(InsufficientMemoryError) as caught:
        load(spec)
    assert caught.value.message.startswith("chat@2 needs about 14")
    assert "and 64.0 MiB is available" in caught.value.message
    sent = frames.FROM_WORKER.decode(frames.encode(frames.Failed(caught.value)))
    assert isinstance(sent, frames.Failed)
    assert isinstance(sent.error, InsufficientMemoryError)


def test_a_kv_cache_that_requests_have_yet_to_fill_need_not_fit(
    spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 150 << 20)
    with pytest.raises(MadeError):
        load(spec)


def test_nothing_is_refused_where_the_kernel_does_not_tell(
    spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: None)
    with pytest.raises(MadeError):
        load(spec)
