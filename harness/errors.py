"""What can go wrong, as one tree.

* BenchError
  * UsageError               exit 2: the person's input is wrong; nothing was started
    * ScenarioError          a scenario file
    * ResumeError            a run directory that cannot be continued
    * RecordError            a record that is missing, unreadable or of another schema
    * MissingDependency      an extra or a program that is not installed
  * InvalidRun               exit 4: data was taken and cannot be trusted
    * ArmMismatch            a server that is not what its arm claims
    * ServerDied             the server ended while it was needed
    * MetricAbsent           a series that must be there is not (absent is never zero)
    * CounterReset           a counter that went backwards
  * HarnessFailure           exit 5: the measurement could not be carried out
    * ServerNotReady         no ready server within the time allowed
    * WrongModel             somebody else's server answers on our port
    * ServerLeft             something of a server outlived its stop
    * SettleTimeout          the server never came to rest
"""

from __future__ import annotations

from pathlib import Path


class ExitCode:
    """Exit codes of every `bench` command."""

    OK = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INVALID = 4
    FAILURE = 5
    INTERRUPTED = 130


class BenchError(Exception):
    """Base of every error this project raises on purpose; `str(error)` is one message for a person."""

    exit_code: int = ExitCode.FAILURE


class UsageError(BenchError):
    exit_code = ExitCode.USAGE


class ScenarioError(UsageError):
    """One thing wrong in a scenario file.

    The message reads `FILE:LINE: WHERE: found FOUND; allowed: ALLOWED`.

    Parameters:
        path: the file.
        where: the dotted key (`workloads[0].table row 'P1024'`), empty for the whole file.
        found: what stands there, already formatted.
        allowed: what may stand there.
        line: 1-based line, when known.
    """

    def __init__(self, path: Path | str, where: str, found: str, allowed: str, line: int | None = None) -> None:
        self.path, self.where, self.found, self.allowed, self.line = str(path), where, found, allowed, line
        place = f"{path}:{line}" if line is not None else f"{path}"
        subject = f"{where}: " if where else ""
        super().__init__(f"{place}: {subject}found {found}; allowed: {allowed}")


class ResumeError(UsageError):
    pass


class RecordError(UsageError):
    pass


class MissingDependency(UsageError):
    pass


class InvalidRun(BenchError):
    exit_code = ExitCode.INVALID


class ArmMismatch(InvalidRun):
    pass


class ServerDied(InvalidRun):
    pass


class MetricAbsent(InvalidRun):
    pass


class CounterReset(InvalidRun):
    pass


class HarnessFailure(BenchError):
    exit_code = ExitCode.FAILURE


class ServerNotReady(HarnessFailure):
    pass


class WrongModel(HarnessFailure):
    pass


class ServerLeft(HarnessFailure):
    pass


class SettleTimeout(HarnessFailure):
    pass
