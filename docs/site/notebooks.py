"""Write examples/first_look.ipynb, a notebook without outputs, from the cells of examples/first_look.py.

python docs/site/notebooks.py
"""

from __future__ import annotations

import json
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples/first_look.py"
NOTEBOOK = SCRIPT.with_suffix(".ipynb")


def notebook(script: str) -> str:
    """Return a script as a notebook: its docstring, and for each `# %%` the comment as text, and the code after it."""
    head, *cells = script.split("# %% ")
    texts = [(head.strip().strip('"'), ""), *(cell.split("\n", 1) for cell in cells)]
    parts = []
    for number, (words, code) in enumerate(texts):
        for kind, source in (("markdown", words.strip()), ("code", code.strip())):
            if source:
                more = {"execution_count": None, "outputs": []} if kind == "code" else {}
                cell = {"cell_type": kind, "id": f"{kind}-{number}", "metadata": {}}
                parts.append({**cell, **more, "source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    facts = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": parts, "metadata": facts, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(SCRIPT.read_text(encoding="utf-8")), encoding="utf-8")
