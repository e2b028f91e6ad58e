import pytest

pytest.importorskip("headrace_native", reason="needs headrace-native: `make native` builds it")
