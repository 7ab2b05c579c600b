"""Writes model files from the configurations with which models are published."""
