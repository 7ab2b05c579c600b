"""Format numbers of files that outlive a version of this software: cells and archives.

Later versions read what earlier versions wrote. A format's number grows if an older version could
not read the new format, or would misread it. Format 1 is that of version 0.1, which wrote no
number.

A field that a later format of ``cell.json`` introduces has a default, which describes older cells.
``since`` of its axis is the number of that format, so the newest format is that of the newest field
(``records.cell_axes.CELL_FORMAT``). Cells with the default keep their digests, and so their runs.
Columns that were added later to runs' CSV files are marked ``LATER`` in ``records/columns.py`` and
``records/telemetry_columns.py``. For older files they are empty.
"""

from __future__ import annotations

#: of archives, in bag-info.txt
ARCHIVE_FORMAT = 2


def newer(found: object, known: int) -> str:
    """Why this version cannot read a format ``found``, if it reads 1 to ``known``; "" if it can."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        return f"its format is {found!r}, expected a whole number from 1 to {known}"
    if found > known:
        return (
            f"it was written in format {found} by a newer version of Triptych; this one reads "
            f"formats 1 to {known}: use that version, or a newer one"
        )
    return ""
