"""The ledger: claims, and the verdicts that runs support.

::

    config/claims.yaml ──┐
                         ├─ pairs (which cells) ─ contrasts (their intervals) ─ verdicts ─▶ page
    tables of sweeps ────┘                              │                           ▲
                                                        └─ ratio_of_ratios ────────┘

``contrasts`` takes ratios, differences and their intervals from :mod:`workflow_lib.comparison` and
:mod:`workflow_lib.intervals`, and ``ratio_of_ratios`` makes one contrast of two of them. Nothing in
this package estimates anything else.
"""
