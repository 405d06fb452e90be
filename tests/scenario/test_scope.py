"""The scope: claims as data, joined with what was published and what was measured here, and never mixing the two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.errors import BenchError, RecordError, ScenarioError, UsageError
from harness.published import COLUMNS, read_published
from harness.scope import load_scope, scope_report
from harness.scope_text import WIDTH, render_scope

ROOT = Path(__file__).parents[2]
SCOPE = ROOT / "scenarios" / "scope.yaml"
EXAMPLE = ROOT / "results" / "examples" / "quickstart"
HEAD = ",".join(COLUMNS)
SMALL = """\
schema: 1
source: somewhere
rows:
  - model: tiny-omni
    profiles: [none.yaml]
    stage: stage 0
    default: on
    basis: measured
    evidence: said to be faster
    scenario: quickstart.yaml
    published: table.csv
  - model: other
    profiles: [other.yaml]
    stage: talker
    default: off
    basis: none
    evidence: not validated
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A small scope with its scenario, a published table and one run."""
    (tmp_path / "scope.yaml").write_text(SMALL, encoding="utf-8")
    shutil.copy(ROOT / "scenarios" / "quickstart.yaml", tmp_path)
    published = tmp_path / "results" / "published"
    published.mkdir(parents=True)
    line = "P1024_h94_c8,90.0%..92.6%,5.0,-0.1,3.5,3.0,4.0,,-0.5"
    (published / "table.csv").write_text(f"{HEAD}\n{line}\n", encoding="utf-8")
    shutil.copytree(EXAMPLE, tmp_path / "results" / "quickstart-1")
    return tmp_path


def test_the_shipped_scope_reads_and_names_what_exists() -> None:
    """Every scenario and published table it names is in the repository, and each published table is named once."""
    rows = load_scope(SCOPE).rows
    scenarios = [row.scenario for row in rows if row.scenario]
    assert len(set(scenarios)) == len(scenarios)
    assert all((SCOPE.parent / name).is_file() for name in scenarios)
    named = sorted(row.published for row in rows if row.published)
    assert named == sorted(path.name for path in (ROOT / "results" / "published").glob("*.csv"))


def test_a_row_on_by_default_was_measured_or_says_that_it_was_not() -> None:
    """The published defaults, as the documents list them."""
    defaults = {(row.model, row.stage): (row.default, row.basis) for row in load_scope(SCOPE).rows}
    assert len(defaults) == len(load_scope(SCOPE).rows)
    assert defaults["Qwen3-Omni", "Thinker"] == (True, "measured")
    assert defaults["Qwen3-Omni", "Thinker, MRv2 and duplex"] == (False, "none")
    assert sum(default for default, _ in defaults.values()) == 7
    assert [key[0] for key, value in defaults.items() if value == (True, "none")] == ["GLM-Image, MOSS-TTS local"]


def test_published_tables_read_as_numbers() -> None:
    """Percentages become shares, an empty cell is absent, and a range of hit rates keeps both ends."""
    rows = {row.bench: row for row in read_published(ROOT / "results" / "published" / "qwen3_omni.csv")}
    assert len(rows) == 22
    assert rows["DEC100_c32"].hit == pytest.approx((0.003, 0.647))
    one = rows["AUD_L4096_h94_c32"]
    assert (one.older, one.improved, one.improved_range) == (0.162, 0.195, (0.189, 0.208))
    assert (one.older_ttfp, one.improved_ttfp) == (-0.665, -0.749)
    assert rows["P1024_h0_c1"].older_ttfp is None


def test_a_run_is_joined_with_its_claim_and_stays_apart_from_what_was_published(place: Path) -> None:
    """Figures, revision and date come from the run's records; the published table keeps its own numbers."""
    first, second = scope_report(place / "scope.yaml", place / "results").entries
    (run,) = first.runs
    manifest = json.loads((EXAMPLE / "manifest.json").read_text(encoding="utf-8"))
    assert (run.run, run.date) == (manifest["run"], manifest["created_at"])
    assert run.sources == (f"omni-prefix-bench {manifest['sources'][0]['commit'][:12]}",)
    assert [figure.bench for figure in run.figures] == [
        "P1024_h0_c8",
        "P1024_h50_c8",
        "P1024_h94_c8",
        "P512_h50_c1",
        "DEC64_c16",
        "AUD_L1024_h94_c4",
    ]
    figure = run.figures[2]
    # By hand, from the records: mean over rounds against the baseline's.
    throughput: dict[str, list[float]] = {"cache_off": [], "cache_on": []}
    for cell in EXAMPLE.glob("trials/*/P1024_h94_c8.json"):
        record = json.loads(cell.read_text(encoding="utf-8"))
        throughput[record["cell"]["arm"]].append(record["request_throughput"])
    off, on = (sum(values) / len(values) for values in throughput.values())
    assert (figure.arm, figure.rounds) == ("cache_on", 4)
    assert (figure.baseline, figure.ratio) == (pytest.approx(off), pytest.approx(on / off - 1))
    assert figure.hit == pytest.approx((0.911, 0.911), abs=5e-4)
    assert [row.improved for row in first.published] == [3.5]
    assert (second.runs, second.published) == ((), ())


def test_the_text_says_which_figures_were_published_and_which_measured_here(place: Path) -> None:
    """Each table stands under its label, nothing is wider than a terminal's line of prose."""
    text = render_scope(scope_report(place / "scope.yaml", place / "results"))
    published, measured = text.index("published, not measured here"), text.index("measured here: quickstart-")
    assert published < text.index("90.0% .. 92.6%") < measured < text.index("91.1%")
    assert "+350.0%; TTFP −50.0%" in text  # noqa: RUF001  a real minus sign
    assert "faster (4 rounds)" in text
    assert "other, talker (other.yaml)\n  published: not validated" in text
    assert max(map(len, text.splitlines())) <= WIDTH + 20


def test_a_run_of_another_scenario_is_left_out(place: Path) -> None:
    """Only the name of the scenario joins."""
    manifest = place / "results" / "quickstart-1" / "manifest.json"
    data = json.loads(manifest.read_text(encoding="utf-8"))
    data["scenario"]["name"] = "elsewhere"
    manifest.write_text(json.dumps(data), encoding="utf-8")
    assert scope_report(place / "scope.yaml", place / "results").entries[0].runs == ()


def test_examples_count_and_missing_results_do_not(place: Path) -> None:
    """A run under examples/ is a run; a results directory without runs is none."""
    (place / "results" / "quickstart-1").rename(place / "results" / "moved")
    (place / "results" / "examples").mkdir()
    (place / "results" / "moved").rename(place / "results" / "examples" / "quickstart")
    assert len(scope_report(place / "scope.yaml", place / "results").entries[0].runs) == 1
    shutil.rmtree(place / "results" / "examples")
    assert scope_report(place / "scope.yaml", place / "results").entries[0].runs == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("schema: 1", "schema: true", ":1: schema: found true (true or false); allowed: 1"),
        ("    stage: talker\n", "", ":12: rows[1].stage: found nothing; allowed: a value: the key is required"),
        ("stage: talker", "stagee: talker", ":14: rows[1].stagee: found an unknown key (did you mean 'stage'?)"),
        ("basis: none", "basis: felt", ":16: rows[1].basis: found 'felt' (text); allowed: 'measured', 'review' or"),
        ("profiles: [other.yaml]", "profiles: []", ":13: rows[1].profiles: found an empty list; allowed: a list of"),
        ("scenario: quickstart.yaml", "scenario: no.yaml", "no.yaml: found no such file"),
        ("published: table.csv", "published: no.csv", "published/no.csv: cannot be read: No such file"),
    ],
)
def test_a_wrong_scope_file_gives_one_message(place: Path, old: str, new: str, expected: str) -> None:
    """File, line, key, what was found and what is allowed."""
    path = place / "scope.yaml"
    path.write_text(SMALL.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BenchError) as caught:
        scope_report(path, place / "results")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: found nothing; allowed: bench,"),
        ("bench,hit\n", ":1: found bench,hit; allowed: bench,"),
        (f"{HEAD}\nP,1%,2\n", ":2: found 3 cells; allowed: 9"),
        (f"{HEAD}\nP,1%,1,1,1,1,1,,,9\n", ":2: found 10 cells; allowed: 9"),
        (f"{HEAD}\nP,1%,fast,1,1,1,1,,\n", ":2: cache_off_req_per_s: found 'fast'; allowed: a number"),
        (f"{HEAD}\nP,1%,nan,1,1,1,1,,\n", ":2: cache_off_req_per_s: found 'nan'; allowed: a number"),
        (f"{HEAD}\nP,0.5,1,1,1,1,1,,\n", ":2: stage0_hit: found '0.5'; allowed: a percentage"),
        (f"{HEAD}\nP,1%,1,1,1,1,1,,\nP,1%,1,1,1,1,1,,\n", ": found bench P twice; allowed: once"),
    ],
)
def test_a_wrong_published_table_gives_one_message(tmp_path: Path, text: str, expected: str) -> None:
    """Nothing of a table that cannot be read is printed as a figure."""
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_published(path)
    assert str(caught.value).startswith(f"{path}{expected}")


def test_a_broken_record_is_named(place: Path) -> None:
    """A run that cannot be read is an error, not an absence."""
    manifest = place / "results" / "quickstart-1" / "manifest.json"
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"manifest\.json: not a Manifest"):
        scope_report(place / "scope.yaml", place / "results")


def test_the_command_prints_text_or_json(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench scope` takes the repository's own files by default."""
    arguments = ["scope", str(place / "scope.yaml"), "--results", str(place / "results")]
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)["rows"]
    assert (first["default"], second["default"]) == (True, False)
    assert first["published_not_measured_here"][0]["hit"] == [pytest.approx(0.9), pytest.approx(0.926)]
    assert first["runs"][0]["figures"][0]["bench"] == "P1024_h0_c8"
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["scope"], catch_exceptions=False)
    assert done.stdout.startswith("Prefix caching by model. Published: Two pull requests of vLLM-Omni")


def test_results_that_are_not_there_give_one_message(place: Path) -> None:
    """Exit code 2 and the folder: a scope without its evidence is not printed."""
    done = CliRunner().invoke(app, ["scope", str(place / "scope.yaml"), "--results", str(place / "nowhere")])
    assert isinstance(done.exception, UsageError)
    assert done.exception.exit_code == 2
    assert str(done.exception).startswith(f"{place / 'nowhere'}: found no such folder; allowed: ")
    assert done.output == ""


def test_a_scope_is_not_taken_for_a_scenario_with_typing_errors(place: Path) -> None:
    """`bench check scenarios/scope.yaml` says which command reads such a file."""
    done = CliRunner().invoke(app, ["check", str(place / "scope.yaml")])
    assert isinstance(done.exception, ScenarioError)
    assert str(done.exception) == (
        f"{place / 'scope.yaml'}:3: rows: found the rows of a table for `bench scope`; allowed: a scenario, "
        "which has arms"
    )
