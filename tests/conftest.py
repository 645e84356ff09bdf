"""What all tests share: the `--update` option for golden cases, and how hypothesis runs."""

import os

import pytest
from hypothesis import HealthCheck, settings

from weft.runtime.native.api import native_api

# The first call of a compiled function compiles it, so one example may take a hundred times as
# long as the next: no deadline per example. CI must give the same verdict twice on the same tree,
# so it draws the same examples each time; a developer's runs draw new ones.
settings.register_profile(
    "weft",
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("weft")

# Tests count what is compiled: a developer's warm cache must not change that. Tests of the cache
# turn it on in a folder of their own.
os.environ["WEFT_CACHE"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update`: write what the code prints now into the golden files in tests/cases."""
    parser.addoption(
        "--update",
        action="store_true",
        default=False,
        help="rewrite the expected text of tests/cases/*.weft; read the diff before committing",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse `--update` where nobody reads the diff: in CI it would make every case pass."""
    if config.getoption("--update") and "CI" in os.environ:
        raise pytest.UsageError("--update rewrites the golden files; it is not for CI")


@pytest.fixture(scope="session")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether this run rewrites golden files (`pytest --update`) and does not compare them."""
    return bool(request.config.getoption("--update"))


@pytest.fixture(scope="session", autouse=True)
def native_calls() -> None:
    """The native call path from the first call on: otherwise it depends on timing which of a
    test's calls take it. `test_native_call.py` has the tests of calls before it is there."""
    native_api()
