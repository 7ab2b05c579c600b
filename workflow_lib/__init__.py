"""Triptych: measures distributed training in three panels: power, performance, thermal."""

import sys

__version__ = "0.1.0"

# Where a terminal's encoding lacks a character, as Latin-1 does a dash, commands show its escape
# and go on. Standard error does so by itself.
if hasattr(sys.stdout, "reconfigure") and sys.stdout.errors == "strict":
    sys.stdout.reconfigure(errors="backslashreplace")
