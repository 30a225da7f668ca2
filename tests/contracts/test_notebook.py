"""The notebook runs from its first cell to its last, with a short run in place of the long one."""

import os

import processes
import pytest
from places import ROOT

NOTEBOOK = ROOT / "microrl" / "guide" / "quickstart.ipynb"


@pytest.mark.slow(minutes=0.5)
@pytest.mark.one_of_each
def test_the_notebook_runs_on_a_processor(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "it is stored without outputs"
    assert [cell.source for cell in code if "install" in cell.metadata.get("tags", ())] == ["%pip install --quiet microrl"]
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())]
    steps = next(cell for cell in notebook.cells if cell.source.startswith("STEPS = 60\n"))
    steps.source = steps.source.replace("STEPS = 60", "STEPS = 3")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, value in processes.command_in(commands).items():
        monkeypatch.setenv(name, value)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = ["".join(str(output) for output in cell.get("outputs", ())) for cell in notebook.cells]
    assert any("Accuracy on 64 held-out questions" in text for text in said)
    assert any("image/svg+xml" in text for text in said) and (tmp_path / "report.html").stat().st_size > 100_000
    assert not [text for text in said if "error: " in text or "Traceback" in text]
    assert ("no GPU here" in said[-1]) or os.path.exists("/dev/nvidia0")
