import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequestError
from headrace.routing.upstream.relay_body import with_fields

_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)
_BODIES = st.dictionaries(st.text(), _VALUES, max_size=6)


_FIELDS = st.dictionaries(
    st.text(), st.booleans() | st.text() | st.integers(-(1 << 63), 1 << 63), max_size=3
)


@given(body=_BODIES, fields=_FIELDS, ascii_only=st.booleans())
def test_fields_are_set_and_the_others_stay(
    body: dict[str, Any], fields: dict[str, Any], *, ascii_only: bool
) -> None:
    data = json.dumps(body, ensure_ascii=ascii_only).encode()
    assert json.loads(with_fields(data, fields)) == {**body, **fields}


@pytest.mark.parametrize(
    "body",
    [
        b'{ "model" : "a", "seed": 12345678901234567890123, "x": 1.10 }',
        b'{"model":"a","tools":[{"b":"\\u00e9 \xc3\xa9"}],"x":1e400}',
    ],
)
def test_values_that_stay_keep_their_bytes(body: bytes) -> None:
    changed = with_fields(body, {"model": "b"})
    assert changed.startswith(b'{"model":"b",')
    for value in (b"12345678901234567890123", b"1.10", b'[{"b":"\\u00e9 \xc3\xa9"}]', b"1e400"):
        assert (value in changed) == (value in body)


@pytest.mark.parametrize(
    "fields", [{}, {"model": "a"}, {"stream_options": {"include_usage": True}}]
)
def test_a_body_that_has_the_fields_stays_as_it_is(fields: dict[str, object]) -> None:
    body = b'{ "model": "a", "stream_options": {"include_usage":true} , "b": [ 1 ] }'
    assert with_fields(body, fields) is body


def test_of_a_field_that_is_there_twice_the_last_one_counts() -> None:
    assert with_fields(b'{"a":1,"model":"x","a":2}', {"model": "y"}) == b'{"a":2,"model":"y"}'


def test_a_body_that_is_nested_too_deeply_is_the_clients_mistake() -> None:
    body = b'{"model":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        with_fields(body, {"model": "b"})
