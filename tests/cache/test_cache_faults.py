"""The list of faults stays in step with the cache, and every fault on it is noticed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "inject_faults.py"
# The script copies the suite, and its copy has no scripts: there is nothing to check in it.
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a copy of the suite, made to be broken")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return pytest.importorskip("inject_faults")


def test_every_fault_can_still_be_injected(script: ModuleType) -> None:
    """Each old text stands in the source exactly once, and the change really changes it."""
    assert len(script.FAULTS) >= 14
    assert not [message for fault in script.FAULTS if (message := script.misplaced(fault, ROOT))]
    assert not [fault.name for fault in script.FAULTS if fault.old == fault.new]
    assert len({fault.name for fault in script.FAULTS}) == len(script.FAULTS)


def test_every_fault_names_tests_that_exist(script: ModuleType) -> None:
    """A fault without a test, or with one that was renamed, would be caught by nobody."""
    for fault in script.FAULTS:
        assert fault.tests
        for test in fault.tests:
            file, *names = test.split("::")
            source = (ROOT / "tests" / "cache" / file).read_text(encoding="utf-8")
            assert re.search(rf"\b{re.escape(names[0].partition('[')[0])}\b", source), test


def test_the_committed_table_is_the_scripts(script: ModuleType) -> None:
    """docs/cache_faults.md says what the script would write."""
    assert script.TABLE.read_text(encoding="utf-8") == script.table(list(script.FAULTS))


def test_a_fault_that_is_lost_or_survives_fails_the_script(script: ModuleType, tmp_path: Path) -> None:
    """What is not there exactly once is named; a test that did not fail is named as one that did not notice."""
    (tmp_path / "prefix_cache").mkdir()
    (tmp_path / "prefix_cache" / "log.py").write_text("one line\nanother line\n", encoding="utf-8")
    fault = script.Fault("a name", "log.py", "line\n", "", "why", ("test_a.py::test_b", "test_c.py::test_d"))
    assert script.misplaced(fault, tmp_path) == "a name: its old text stands 2 times in prefix_cache/log.py"
    noticed = script.Outcome(("test_a.py::test_b[some parameter]", "test_c.py::test_other"))
    assert script.survived(fault, noticed) == "not noticed by test_c.py::test_d"
    assert script.survived(fault, script.Outcome(("test_a.py::test_b", "test_c.py::test_d"))) is None
    assert script.survived(fault, script.Outcome((), "pytest ended with 4")) == "pytest ended with 4"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_fault_is_noticed() -> None:
    """One at a time, in a copy of the cache, each fault fails every test that is named for it."""
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=1700, check=False)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
