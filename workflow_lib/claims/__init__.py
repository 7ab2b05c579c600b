"""The ledger: claims, and the verdicts that runs support.

::

    config/claims.yaml ──┐
                         ├─ pairs (which cells) ─ contrasts (their intervals) ─ verdicts ─▶ page
    tables of sweeps ────┘                              │                           ▲
                                                        └─ beside (of two pairs) ───┘

``contrasts`` takes ratios, differences and their intervals from :mod:`workflow_lib.comparison` and
:mod:`workflow_lib.intervals`, and ``beside`` makes one contrast of two of them. Nothing in this
package estimates anything else.
"""
