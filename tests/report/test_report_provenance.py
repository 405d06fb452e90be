"""What a reader needs to trust a run and to make it again: hashes, times, resumes, commands."""

import hashlib
import json
import shlex
import subprocess

import pytest
from report_tables import rendered, rows, section
from synthetic_run import SCENARIO, SyntheticRun

from harness.errors import RecordError
from harness.report import build_report, render_markdown
from harness.report.reproduce import narrowing
from harness.scenario import load_scenario
from harness.store import RunStore

NOTES = "Caveats and dropped pairs"
SLUGS = tuple(f"r{one:02d}-{two}-cache_{arm}" for one in range(1, 5) for two in (1, 2) for arm in ("off", "on"))


def commands(report):
    return section(report, "How to reproduce").split("```bash\n")[1].split("\n```")[0].splitlines()


def test_the_two_hashes_are_told_apart(tmp_path):
    """The file's hash is that of the bytes in the run's folder; the resolved scenario's has its own line."""
    root = SyntheticRun(tmp_path / "run").write()
    report = render_markdown(build_report(RunStore.open(root)), ())
    facts = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in report.splitlines() if " sha256 | " in line
    }
    assert hashlib.sha256((root / "scenario.yaml").read_bytes()).hexdigest() in facts["file sha256"]
    assert "5" * 64 in facts["resolved scenario sha256"]
    assert "narrowing included" in facts["resolved scenario sha256"]


def test_a_run_without_its_scenario_file_is_refused(tmp_path):
    """A hash that cannot be computed is an error and not left out."""
    root = SyntheticRun(tmp_path / "run").write()
    (root / "scenario.yaml").unlink()
    with pytest.raises(RecordError, match=r"scenario\.yaml: cannot be read"):
        build_report(RunStore.open(root))


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("s.yaml",), ()),
        (("s.yaml", "--rounds", "2", "--out", "x"), ("--rounds", "2")),
        (("--only", "P*", "s.yaml", "--only=AUD", "--json"), ("--only", "P*", "--only=AUD")),
        (("--out", "--rounds", "--arms", "off", "s.yaml"), ("--arms", "off")),
        (("--out=--rounds", "--", "--only"), ()),
    ],
    ids=["whole", "rounds", "only twice", "a value that looks like an option", "no options behind --"],
)
def test_narrowing_keeps_what_changes_the_measurement(words, kept):
    """--only, --rounds and --arms are kept as given; where results go and how they are printed are not."""
    assert narrowing(("bench", "run", *words)) == kept


def test_a_narrowed_run_is_reproduced_narrowed(tmp_path):
    """The command for the run's own copy carries the narrowing options, quoted for a shell, and not --out."""
    command = ("bench", "run", "s.yaml", "--only", "P1024_*", "--rounds", "2", "--out", "/elsewhere")
    lines = commands(rendered(tmp_path / "run", command=command))
    assert "bench run results/synthetic-20260101T000000Z/scenario.yaml --only 'P1024_*' --rounds 2" in lines
    assert "bench run s.yaml --only 'P1024_*' --rounds 2 --out /elsewhere" in lines


CONVERSATION = """\
  - dataset: conversation
    path: ../sets/talk.jsonl
    table: |
      name  concurrency prompts output
      TALK  1           1       4
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\nserver: {kind: tiny-omni", "\ntokenizer: ../tok\nserver: {kind: tiny-omni"),
        ("{kind: tiny-omni}", "{kind: vllm, model_path: ../models/tiny}"),
        ("{kind: tiny-omni}", "{kind: vllm, source: ../vllm}"),
        ("{kind: tiny-omni}", "{kind: vllm}"),
        ("{prefix_cache: bundled}", "{prefix_cache: bundled, python: ../env/bin/python}"),
        ("{prefix_cache: bundled}", "{deploy: {base_config: ./base.yaml}}"),
        ("workloads:\n", f"workloads:\n{CONVERSATION}"),
        ("workloads:\n", f"accuracy:\n{CONVERSATION}    measure: parity\nworkloads:\n"),
    ],
    ids=["tokenizer", "model_path", "source", "model", "python", "base_config", "set", "set of a check"],
)
def test_a_copy_with_relative_paths_is_run_where_they_lead_on(tmp_path, old, new):
    """The commands, typed as printed: the copy beside the original defines the same run, and replaces nothing."""
    scenarios = tmp_path / "my scenarios"
    scenarios.mkdir()
    (scenarios / "base.yaml").write_text("stages: []\n")
    original = scenarios / "s.yaml"
    original.write_text(SCENARIO.replace(old, new))

    class Placed(SyntheticRun):
        def __post_init__(self):
            super().__post_init__()
            (self.root / "scenario.yaml").write_bytes(original.read_bytes())

        def manifest(self):
            found = load_scenario(original)
            update = {"scenario_file": str(original), "scenario": found.resolved(), "plan": self.plan}
            return super().manifest().model_copy(update=update)

    run = "synthetic-20260101T000000Z"
    words = ("bench", "run", "--rounds", "4", "./my scenarios/s.yaml", "--json")
    root = Placed(tmp_path / "results" / run, skip=SLUGS, command=words).write()
    lines = commands(render_markdown(build_report(RunStore.open(root)), ()))
    (place,) = (number for number, line in enumerate(lines) if "copy of the scenario" in line)
    copying, running = (shlex.split(line) for line in lines[place + 1 : place + 3])
    subprocess.run(copying, cwd=tmp_path, check=True, timeout=10)
    assert (running[:2], running[3:]) == (["bench", "run"], ["--rounds", "4"])
    copy = tmp_path / running[2]
    assert copy != original
    assert load_scenario(copy) == load_scenario(original)


@pytest.mark.parametrize(
    ("dirty", "says"),
    [(False, "# harness, at the commit that ran"), (True, "with local changes"), (None, "whether unchanged, is not")],
)
def test_the_revision_comes_first(tmp_path, dirty, says):
    """The commands begin with the exact commit, and say whether it is all that ran."""
    first, second, *_ = commands(rendered(tmp_path / "run", dirty=dirty))
    assert says in first
    assert ("local changes" in first) is (dirty is True)
    assert second == f"git checkout {'0' * 40}"


def test_an_unknown_revision_is_not_made_up(tmp_path):
    """Outside version control there is no commit to check out."""
    lines = commands(rendered(tmp_path / "run", commit=None, dirty=None))
    assert "under no version control" in lines[0]
    assert not [line for line in lines if line.startswith("git ")]


def test_server_commands_show_no_inherited_variable(tmp_path):
    """Of the recorded environment, only the scenario's own variables and those of cache and engine are shown."""
    (server,) = [line for line in commands(rendered(tmp_path / "run")) if line.endswith("--prefix-caching=cache_on")]
    assert server.startswith("OMP_NUM_THREADS=2 SYNTHETIC='a b' python -m")


class ExternalRun(SyntheticRun):
    """Servers that ran already: nothing of how they were started is recorded."""

    def __post_init__(self):
        super().__post_init__()
        file = self.root / "scenario.yaml"
        text = file.read_text().replace("{kind: tiny-omni}", "{kind: external, url: 'http://127.0.0.1:8000'}")
        file.write_text(text.replace("{prefix_cache: bundled}", "{url: 'http://127.0.0.1:8001'}"))
        self.scenario = load_scenario(file)

    def trial(self, planned):
        url = f"http://127.0.0.1:{8000 + (planned.arm != 'cache_off')}"
        update = {"argv": (), "env": {"PYTHONUNBUFFERED": "1"}, "resolved": {"url": url}, "stopped_by": "left running"}
        return super().trial(planned).model_copy(update=update)


def test_a_server_that_ran_already_has_no_command(tmp_path):
    """Where it answered is all that is known: no empty command, no commit of ours, no start of a server."""
    report = render_markdown(build_report(RunStore.open(ExternalRun(tmp_path / "run").write())), ())
    assert [line for line in commands(report) if "server of" in line or "PYTHON" in line] == [
        "# server of cache_off: it ran already, at http://127.0.0.1:8000; how it was started is not known here",
        "# server of cache_on: it ran already, at http://127.0.0.1:8001; how it was started is not known here",
    ]
    assert "average just before the trial's start; the server ran already." in report
    assert "just before the server's start" not in report
    assert "just before the server's start" in rendered(tmp_path / "ours")


def test_another_hash_is_not_called_another_measurement(tmp_path):
    """A newer version adds default keys to the resolved scenario, and with them the same file has another hash."""
    text = section(rendered(tmp_path / "run"), "How to reproduce")
    assert "measured something else" not in text
    assert f"sha256 is `{'5' * 64}`: runs that share it were defined alike." in text
    assert "gives the same file another one" in text


def test_trials_have_their_duration_and_the_load_before_them(tmp_path):
    """The table of trials shows, beside its times, how long each took and how busy the host was."""
    lines = [line for line in rendered(tmp_path / "run").splitlines() if line.startswith("| r0") and "Z |" in line]
    ends = [line.strip("| ").split(" | ")[3:] for line in lines]
    assert ends == [["50.0", f"{0.5 * number:.2f}", "finished"] for number in range(8)]


def test_records_without_the_newer_fields_still_report(tmp_path):
    """A run recorded before load and resumes were: its report has a dash for the load and no word on resumes."""
    root = SyntheticRun(tmp_path / "run").write()
    newer = {root / "manifest.json": "resumed_at"} | dict.fromkeys(root.glob("trials/*/trial.json"), "load_1m")
    for file, key in newer.items():
        record = json.loads(file.read_text())
        del record[key]
        file.write_text(json.dumps(record))
    report = render_markdown(build_report(RunStore.open(root)), ())
    lines = [line for line in report.splitlines() if line.startswith("| r0") and line.endswith("| finished |")]
    assert len(lines) == 8
    assert all(line.endswith("| 50.0 | — | finished |") for line in lines)
    assert "resumed" not in report


def test_a_resumed_run_says_what_ran_after(tmp_path):
    """Each resume names its trials, and the round whose arms lie on both sides of it; nothing becomes invalid."""
    run = SyntheticRun(tmp_path / "run", resumed_at=("2026-01-01T00:03:30.250Z", "2026-01-01T00:07:00Z"))
    report = build_report(RunStore.open(run.write()))
    one, two = [note["why"] for note in rows(render_markdown(report, ()), NOTES) if note["what"] == "resumed"]
    assert one == (
        "the run was taken up again at 2026-01-01T00:03:30.250Z; after that ran r02-2-cache_off, r03-1-cache_off and "
        "r03-2-cache_on; round 2 has trials from before and after it"
    )
    assert two == (
        "the run was taken up again at 2026-01-01T00:07:00Z; after that ran r04-1-cache_on and r04-2-cache_off"
    )
    assert report.valid
    assert "| resumed | 2026-01-01T00:03:30.250Z, 2026-01-01T00:07:00Z |" in render_markdown(report, ())


def test_a_resume_after_which_no_trial_ended_is_told(tmp_path):
    """A resume that was killed before its first trial ended is in the report all the same."""
    report = rendered(tmp_path / "run", resumed_at=("2026-01-02T00:00:00Z",))
    (note,) = [note for note in rows(report, NOTES) if note["what"] == "resumed"]
    assert note["why"].endswith("after that ran no trial that ended")
