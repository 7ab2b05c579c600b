"""Trains one model, spread over ranks by explicit process groups and stepped by an engine."""
