import numpy as np
import pytest

from headrace.executors.openvino.literals import Literals


def test_equal_values_are_one_node() -> None:
    literals = Literals()
    assert literals.ints(0, -1) is literals.ints(0, -1)
    assert literals.number(2) is literals.number(2.0)


@pytest.mark.parametrize(
    "other",
    [np.zeros(0, np.int32), np.zeros((0, 1), np.float32), np.zeros(2, np.float32), np.float32(0)],
)
def test_values_of_another_type_or_shape_are_another_node(other: np.ndarray | np.generic) -> None:
    literals = Literals()
    node = literals.array(np.zeros(0, np.float32))
    assert literals.array(other) is not node
    assert literals.array(other).get_output_shape(0) == list(other.shape)
