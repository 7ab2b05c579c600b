"""Tests projections on published runs and on this workflow's own: it predicts some of them from
others, by splits that were fixed before."""
