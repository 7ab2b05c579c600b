"""Triptych: measures distributed training in three panels: power, performance, thermal."""

import sys

__version__ = "1.1.0"

# Where the encoding of standard output lacks a character, as Latin-1 does a dash, commands print
# its escape and go on. Standard error does so by itself.
if hasattr(sys.stdout, "reconfigure") and sys.stdout.errors in ("strict", "surrogateescape"):
    sys.stdout.reconfigure(errors="backslashreplace")
