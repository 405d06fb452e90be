"""`bench nightly`: check, run, report, gate and trend of one scenario, in one exit code."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from harness.check import check_report
from harness.commands.gate import policy_of, publish
from harness.commands.run import Narrowing, console, exit_code, finish, narrowed, run, tell
from harness.errors import ExitCode
from harness.gating import check_policy
from harness.github import append_summary
from harness.nightly import conclude


def nightly(file: Path, policy_file: Path, narrowing: Narrowing, out: Path, junit: Path | None) -> int:
    """One night. Nothing is started unless scenario, policy and machine are fit for all of it.

    Raises:
        BenchError: whatever ended the night early, with its exit code.
    """
    policy, scenario = policy_of(policy_file), narrowed(file, narrowing)
    check_policy(policy, scenario)
    check_report(scenario, file)
    ran = run(file, narrowing, out, None, policy)
    report, path = finish(ran.store)
    night = conclude(ran.store, policy, out)
    judged = publish(night.gate, ran.store, junit)
    alarms = [f"ALARM {alarm.text}" for alarm in night.alarms]
    where = f"series: {night.series}" if night.series is not None else "series: this night is invalid and not in it"
    append_summary("\n".join([*(f"- {alarm}" for alarm in alarms), "", where.replace(str(out), out.name), ""]))
    tell(report, path, judged.table, *(Text(alarm, style="bold red") for alarm in alarms))
    console().print(where, soft_wrap=True)
    code = night.exit_code
    return code if code != ExitCode.OK else exit_code(report, ran)
