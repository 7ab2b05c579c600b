"""Model files from the configurations that models are published with."""
