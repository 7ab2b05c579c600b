"""Analyses Kineto traces, one per rank: kernel classes, overlap, waiting and bandwidth."""
