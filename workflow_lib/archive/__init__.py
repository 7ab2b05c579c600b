"""Packs a sweep's files under ``results/`` into an archive, and rebuilds the sweep from it."""
