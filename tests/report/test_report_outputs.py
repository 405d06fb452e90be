import io
import re
import statistics
import sys

import pytest
from rich.console import Console
from synthetic_run import THROUGHPUT, SyntheticRun

from harness.report import build_report, draw_figures, regenerate, render_terminal
from harness.store import RunStore


@pytest.fixture
def store(tmp_path):
    return RunStore.open(SyntheticRun(tmp_path / "run").write())


def sizes(paths):
    """Width and height of PNG files, read from their headers."""
    found = []
    for path in paths:
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        found.append((int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")))
    return found


def test_regenerate_writes_report_and_figures(store):
    """One call writes report.md and two PNG files that it shows, and nothing else."""
    before = {path for path in store.path.rglob("*") if path.is_file()}
    report = regenerate(store)
    assert report == store.path / "report.md"
    written = {path for path in store.path.rglob("*") if path.is_file()} - before
    figures = sorted(path for path in written if path.suffix == ".png")
    assert [path.name for path in figures] == ["latency.png", "throughput.png"]
    assert written == {report, *figures}
    assert all(f"](figures/{path.name})" in report.read_text(encoding="utf-8") for path in figures)
    assert all(width > 800 and height > 300 for width, height in sizes(figures))


def test_regenerate_twice_changes_no_byte(store):
    """A report made again from the same records is the same, figures included."""
    report = regenerate(store)
    files = [report, *(store.path / "figures").iterdir()]
    before = [path.read_bytes() for path in files]
    regenerate(store)
    assert [path.read_bytes() for path in files] == before


def test_without_matplotlib_the_report_names_the_extra(store, monkeypatch):
    """No matplotlib: the report is written all the same, without figures, and says what to install."""
    # None in sys.modules is how Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = regenerate(store).read_text(encoding="utf-8")
    assert "pip install 'omni-prefix-bench[figures]'" in text
    assert "](figures/" not in text
    assert not (store.path / "figures").exists()


def test_nothing_measured_draws_nothing(tmp_path):
    """Without a valid pair there is no figure to draw."""
    run = SyntheticRun(tmp_path / "run")
    run.skip = tuple(trial.slug for trial in run.plan)
    assert draw_figures(build_report(RunStore.open(run.write())), tmp_path / "figures") == ()


def test_two_wild_rounds_can_still_be_drawn(tmp_path, monkeypatch):
    """Two rounds that disagree have an interval wider than any page; the figure stays a page."""
    monkeypatch.setitem(
        THROUGHPUT,
        "P1024_h0_c4",
        {"cache_off": (1.0, 1.0, 1.0, 1.0), "cache_on": (0.5, 9.0, 1.0, 1.0)},
    )
    store = RunStore.open(SyntheticRun(tmp_path / "run", rounds=2).write())
    ((width, height), _) = sizes(draw_figures(build_report(store), tmp_path / "figures"))
    assert width < 3000
    assert height < 3000


def test_terminal_shows_the_main_table(store):
    """The terminal's table has the report's benches, ratios and verdicts."""
    console = Console(width=160, file=io.StringIO())
    console.print(render_terminal(build_report(store)))
    text = console.file.getvalue()
    for expected in ("P1024_h94_c4", "92.6%", "19.51", "+356.6%", "faster", "slower", "same", "0 queries"):
        assert expected in text
    assert "caveat: r02-1-cache_on: preemption" in text


def test_several_arms_have_a_row_each(tmp_path):
    """With two arms against the baseline, every bench has one row an arm and both are drawn."""
    store = RunStore.open(SyntheticRun(tmp_path / "run", third_arm=True).write())
    report = build_report(store)
    assert [(row.bench.name, row.arm) for row in report.main[:3]] == [
        ("P1024_h0_c4", "cache_on"),
        ("P1024_h0_c4", "cache_new"),
        ("P1024_h94_c4", "cache_on"),
    ]
    text = regenerate(store).read_text(encoding="utf-8")
    assert "| bench | arm | stage-0 hit |" in text
    assert "With `cache_new` against `cache_off`, of 4 benches" in text
    assert len(sizes((store.path / "figures").iterdir())) == 2


def test_the_figure_prints_the_number_it_draws(store):
    """Beside each diamond of the throughput figure stands the geometric mean that the diamond marks."""
    from matplotlib.figure import Figure

    from harness.report.figures import _throughput

    axes = _throughput(build_report(store), Figure).axes[0]
    drawn = [points.get_offsets()[0][0] for points in axes.collections if len(points.get_offsets()) == 1]
    printed = [note.get_text().split()[0] for note in axes.texts]
    assert len(drawn) == len(printed) == 4
    for value, text, ratios in zip(drawn, printed, list(THROUGHPUT.values())[1:], strict=True):
        quotients = [on / off for on, off in zip(ratios["cache_on"], ratios["cache_off"], strict=True)]
        assert value == pytest.approx(100 * (statistics.geometric_mean(quotients) - 1))
        assert text == f"{value:+.1f}%".replace("-", "\N{MINUS SIGN}")


def on_a_terminal(store, width):
    console = Console(width=width, file=io.StringIO())
    console.print(render_terminal(build_report(store), width))
    return console.file.getvalue()


def test_a_narrow_terminal_names_what_it_leaves_out(store):
    """Under the width of the whole table, one line says which columns are elsewhere, and the width that has them."""
    text = on_a_terminal(store, 80)
    (needed,) = re.findall(r"ideal hit, interval and TTFP: in report\.md, or a terminal of (\d+) columns", text)
    assert "interval of" not in text
    assert max(len(each.rstrip()) for each in text.splitlines()) <= 80
    assert "a terminal of" in on_a_terminal(store, int(needed) - 1)
    whole = on_a_terminal(store, int(needed))
    assert "a terminal of" not in whole
    assert "interval of" in whole
    assert "\N{HORIZONTAL ELLIPSIS}" not in whole
