import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from synthetic_run import SyntheticRun

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "reading_a_run.ipynb"
EXAMPLE = ROOT / "results" / "examples" / "quickstart"


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("source", ["example", "synthetic"])
def test_notebook_runs_and_draws(source, tmp_path, monkeypatch):
    """Every cell runs, on the committed example and on a run of several rounds, and draws both figures."""
    if source == "example":
        if not (EXAMPLE / "manifest.json").is_file():
            pytest.skip("the example run is not part of this checkout")
        monkeypatch.delenv("OMNI_BENCH_RUN", raising=False)
    else:
        monkeypatch.setenv("OMNI_BENCH_RUN", str(SyntheticRun(tmp_path / "run").write()))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=90, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    figures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(figures) == 2
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"]


def test_notebook_is_committed_without_outputs():
    """Outputs never enter version control: they belong to a run, not to the notebook."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
