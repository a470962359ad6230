"""Processes of the tests have one server a backend, and compare with the same twins."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.keras.lab import Lab, Labs


def test_another_process_of_the_tests_has_the_same_server_and_the_same_twin(
    torch: Lab, keras_labs: Labs, tmp_path: Path
) -> None:
    function = "tests.keras.tool.processes"
    with closing(Lab("torch", tmp_path, keras_labs.shared)) as other:
        (server, job), (others_server, others_job) = torch.value(function), other.value(function)
        assert server == others_server
        assert job != others_job
        assert torch.twin(function) == other.twin(function)
    assert torch.value(function)[0] == server, "it ends with its last connection"
