"""The libraries that step a model, each behind the same few calls."""
