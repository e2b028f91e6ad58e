"""What goes wrong between a server and us. The sentences hold nothing of what we sent.

HttpError
|-- UnreachableError       no connection, or it broke before an answer was begun
|   `-- UnansweredError    it closed before the first byte of an answer
`-- MalformedError         what came is no answer, or not all of one
"""


class HttpError(Exception):
    """Its text fits behind the name of the server."""


class UnreachableError(HttpError):
    """No connection, or it broke before an answer was begun."""


class UnansweredError(UnreachableError):
    """The connection closed before the first byte of an answer."""


class MalformedError(HttpError):
    """What came is no answer, or not all of one."""
