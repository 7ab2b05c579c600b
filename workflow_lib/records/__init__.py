"""Every file under ``results/``: its path, and the names, units and types of its contents.

Stages exchange data only through these files, and this package is the only one that knows their
names. It needs only the standard library, because training and telemetry read it on compute nodes
and in site containers.

docs/reference/files.md lists them, those of a run in the order in which they appear.
"""
