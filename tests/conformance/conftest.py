"""A running cluster for the tests of this folder, started once."""

import pytest

from running import Cluster


@pytest.fixture(scope="session")
def cluster():
    running = Cluster()
    yield running
    running.end()


@pytest.fixture
def start_cluster():
    started = []

    def start(*arguments: str, port: int | None = None) -> Cluster:
        started.append(Cluster(*arguments, port=port))
        return started[-1]

    yield start
    for running in started:
        running.end()
