"""``python -m workflow_lib.measure.bundle``: builds ``dist/triptych.pyz``, one file that measures.

It holds what measure imports and NVIDIA's binding (nvidia-ml-py, BSD licence). The same files give
the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from workflow_lib.import_graph import files_behind
from workflow_lib.trainers import hook

ROOT = Path(__file__).parents[2]
ENTRY = "measure.__main__"
#: files that are copied beside the command
HOOK = tuple(f"workflow_lib/trainers/{name}" for name in hook.FILES)
BINDING = "nvidia-ml-py"
_MAIN = f"import sys\n\nfrom workflow_lib.{ENTRY} import run\n\nsys.exit(run(sys.argv[1:]))\n"
_SHEBANG = b"#!/usr/bin/env python3\n"
_WHEN = (2020, 1, 1, 0, 0, 0)


def contents() -> dict[str, bytes]:
    """Name in the archive → content."""
    files = {"__main__.py": _MAIN.encode()}
    modules = (path.relative_to(ROOT) for path in files_behind(ENTRY) if path.suffix == ".py")
    for name in (*map(str, modules), *HOOK):
        files[name] = (ROOT / name).read_bytes()
    for file in metadata.files(BINDING) or ():
        if file.name == "pynvml.py" or "licenses" in file.parts or file.name == "METADATA":
            files[str(file)] = Path(str(file.locate())).read_bytes()
    return files


def write(output: Path) -> None:
    """Write the archive, executable. Raises OSError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as stream:
        stream.write(_SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(contents().items()):
                member = zipfile.ZipInfo(name, _WHEN)
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, content)
    output.chmod(0o755)


def main(arguments: list[str] | None = None) -> int:
    """Build it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_lib.measure.bundle", description=__doc__
    )
    parser.add_argument("--output", type=Path, default=Path("dist/triptych.pyz"))
    output: Path = parser.parse_args(arguments).output
    write(output)
    print(f"{output}: {output.stat().st_size / 1024:.0f} KiB, for Python 3.9 and later")
    return 0


if __name__ == "__main__":
    sys.exit(main())
