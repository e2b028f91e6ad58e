import pytest

from headrace.api.openai.ambiguity import require_one_reading
from headrace.errors import InvalidRequestError

TWICE = "model is there twice."
ESCAPED = "The body: names of fields must be written without escapes."


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"model":"a","model":"b"}', TWICE),
        (b'{"model":"a","x":{"model":1},"model" : "a"}', TWICE),
        (b'{"model":"a","mod\\u0065l":"b"}', ESCAPED),
        (b'{"mod\\u0065l":"b"}', ESCAPED),
        (b'{"stream":true,"stream":false}', "stream is there twice."),
        (b'{"model":"a","Model":"b"}', "Model: there is no such field; it is written model."),
        (b'{"STREAM":true}', "STREAM: there is no such field; it is written stream."),
        (
            '{"\u017ftream":true}'.encode(),
            "\u017ftream: there is no such field; it is written stream.",
        ),
        (
            b'{"return_to\\u212aen_ids":true}',
            "return_to\u212aen_ids: there is no such field; it is written return_token_ids.",
        ),
        (b'{"Answered":[]}', "Answered: there is no such field; it is written answered."),
    ],
)
def test_what_others_could_read_otherwise_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        require_one_reading(body)
    assert caught.value.message == complaint


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"model","stream":true,"stream_options":{"stream":1,"Model":2}}',
        b'{"model":"a","metadata":{"model":"b","deeper":[{"model":1,"mod\\u0065l":2}]}}',
        b'{"model":"a","messages":[{"content":"{\\"model\\":\\"b\\"} \\u0041"}]}',
        b'{"model":"a","x":1,"x":2,"models":3}',
    ],
)
def test_what_all_read_alike_goes_by(body: bytes) -> None:
    require_one_reading(body)
