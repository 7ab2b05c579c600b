"""Numbers of the formats of what outlives a version of this software: cells and archives.

What a version wrote, later ones read. A format's number grows where an older version could not read
it any more, or would read something else from it:

- 1: version 0.1. Neither had a number.
- 2: ``cell.json`` holds ``data.definition``; in records of format 1 it is null.
- 3: ``cell.json`` holds ``model.rotary_base``; before, it was 500 000 for every model.

A field that a format brings has a default: what cells were before it. Its axis says ``since`` which
format it is there, and cells with the default keep their digests, so that their runs stay theirs.
Columns that runs' CSV files were given later are marked in ``records/columns.py``; in older files
they are empty.
"""

from __future__ import annotations

#: of cell.json, in its key ``format``
CELL_FORMAT = 3
#: of archives, in bag-info.txt
ARCHIVE_FORMAT = 2


def newer(found: object, known: int) -> str:
    """Why a format cannot be read: no number, or newer than this version's; "" where it can."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        return f"its format is {found!r}, expected a whole number from 1 to {known}"
    if found > known:
        return (
            f"it was written in format {found} by a newer version of Triptych; this one reads "
            f"formats 1 to {known}: use that version, or a newer one"
        )
    return ""
