"""Triptych: measures distributed training in three panels: power, performance, thermal."""

__version__ = "0.1.0"
