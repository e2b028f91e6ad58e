"""Which upstreams a client may name, and every way around that we could think of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from headrace.endpoints import UpstreamConfig
from headrace.errors import ConfigurationError, InvalidRequestError
from headrace.registry.changes.admission import require_allowed_upstream

ROOT = "https://gpu.example.org:8443/team"
DECLARED = {
    (URL("https://api.example.org/v1"), "GPT_KEY"),
    (URL("http://open.example.org/v1"), None),
}


def require(url: str, api_key_env: str | None = None, roots: tuple[str, ...] = (ROOT,)) -> None:
    require_allowed_upstream(
        UpstreamConfig(url=url, api_key_env=api_key_env),
        roots=roots,
        declared=DECLARED,
        field="upstreams.0.url",
    )


def refusal(url: str, api_key_env: str | None = None, roots: tuple[str, ...] = (ROOT,)) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        require(url, api_key_env, roots)
    assert (caught.value.status, caught.value.param) == (400, "upstreams.0.url")
    return caught.value.message


def test_what_is_declared_is_allowed_with_its_own_key() -> None:
    require("https://api.example.org/v1", "GPT_KEY")
    require("https://API.example.org/v1/", "GPT_KEY")
    require("http://open.example.org/v1")


def test_a_key_goes_nowhere_else() -> None:
    for url in (
        "http://api.example.org/v1",  # in the clear
        "https://api.example.org:8443/v1",
        "https://api.example.org/v2",
        "https://api.example.org/v1/x",
        "https://api.example.org.evil.org/v1",
        "http://open.example.org/v1",
        "https://evil.org/v1",
        f"{ROOT}/v1",  # below a root, but with a key
    ):
        refusal(url, "GPT_KEY")


def test_no_other_variable_is_sent_to_a_declared_upstream() -> None:
    for variable in ("AWS_SECRET_ACCESS_KEY", "gpt_key", None):
        refusal("https://api.example.org/v1", variable)
    refusal("http://open.example.org/v1", "GPT_KEY")


def test_what_is_below_a_root_is_allowed_without_a_key() -> None:
    for path in ("", "/", "/v1", "/a.b/c_d/~e-f/v1", "/v1/"):
        require(ROOT + path)
    require("https://GPU.example.org:8443/team/v1")
    require("http://gpu/any/v1", roots=("http://gpu",))
    require("http://gpu:80/any/v1", roots=("http://gpu/",))
    require("http://[::1]:8000/v1", roots=("http://[::1]:8000",))


@pytest.mark.parametrize(
    "url",
    [
        "http://gpu.example.org:8443/team/v1",
        "https://gpu.example.org/team/v1",
        "https://gpu.example.org:844/team/v1",
        "https://gpu.example.org.:8443/team/v1",
        "https://gpu.example.org.evil.org:8443/team/v1",
        "https://evil-gpu.example.org:8443/team/v1",
        "https://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:8000/v1",
        "https://gpu.example.org:8443/",
        "https://gpu.example.org:8443/teammate/v1",
        "https://gpu.example.org:8443/Team/v1",
        "https://gpu.example.org:8443/team/../admin/v1",
        "https://gpu.example.org:8443/team/./v1",
        "https://gpu.example.org:8443/team/..",
        "https://gpu.example.org:8443/team/%2e%2e/admin/v1",
        "https://gpu.example.org:8443/team/%2E%2E/admin/v1",
        "https://gpu.example.org:8443/team/..%2fadmin/v1",
        "https://gpu.example.org:8443/team/%2e%2e%2fadmin/v1",
        "https://gpu.example.org:8443/team/%252e%252e/admin/v1",
        "https://gpu.example.org:8443/team/..;/admin/v1",
        "https://gpu.example.org:8443/team/..\\admin/v1",
        "https://gpu.example.org:8443/x/../team/v1",
        "https://gpu.example.org:8443/team//v1",
        "https://gpu.example.org:8443//team/v1",
        "https://gpu.example.org:8443/team/v1\n",
        "https://gpu.example.org:8443/team/v1 ",
        "https://gpu.example.org:8443/t%65am/v1",
        "https://gpu。example。org:8443/team/v1",
        "https://ｇpu.example.org:8443/team/v1",
        "HTTPS://gpu.example.org:8443/team/v1",
    ],
)
def test_what_is_not_plainly_below_a_root_is_refused(url: str) -> None:
    refusal(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://gpu.example.org:8443@evil.org/team/v1",
        "https://gpu.example.org:8443/team/v1?x=1",
        "https://gpu.example.org:8443/team/v1#x",
        "https://gpu.example.org:8443\\@evil.org/team/v1",
        "file:///etc/passwd",
        "gopher://gpu.example.org:8443/team/v1",
        "//gpu.example.org:8443/team/v1",
        "unix:///run/docker.sock",
        "https:///team/v1",
        "https://gpu.example.org:port/team/v1",
    ],
)
def test_what_is_no_base_url_is_none_for_anybody(url: str) -> None:
    with pytest.raises((ConfigurationError, InvalidRequestError)):
        require(url)


def test_without_roots_only_what_is_declared_is_allowed() -> None:
    refusal(f"{ROOT}/v1", roots=())
    require("http://open.example.org/v1", roots=())


def test_a_refusal_does_not_tell_which_variables_there_are() -> None:
    known, unknown = (refusal("https://evil.org/v1", name) for name in ("GPT_KEY", "NO_KEY"))
    assert known == unknown


@given(path=st.text(alphabet="teamv1/.%2eE\\;~_-", max_size=20))
def test_whatever_is_allowed_leads_below_the_root(path: str) -> None:
    url = f"https://gpu.example.org:8443/{path}"
    try:
        require(url)
    except (ConfigurationError, InvalidRequestError):
        return
    asked = UpstreamConfig(url=url).base.joinpath("chat/completions")
    assert str(asked).startswith(f"{ROOT}/")
    assert "%" not in str(asked)
    assert ".." not in asked.parts
