"""A plugin for pytest: no test begins after a moment, and failures are written to a file as they come.

`pytest -p deadline` with this folder in PYTHONPATH. So pytest ends by itself, and tells what failed so far.

  FCAFFE_TESTS_END      seconds since 1970 after which tests are skipped
  FCAFFE_TESTS_FAILED   the file
"""

import os
import time

import pytest

END = float(os.environ.get("FCAFFE_TESTS_END", "inf"))
FAILED = os.environ.get("FCAFFE_TESTS_FAILED")
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # whose reports the first process gets


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > END:
        pytest.skip("the time for tests is over")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if FAILED and report.failed and not IS_WORKER:
        with open(FAILED, "a") as file:
            file.write(f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}\n\n")
