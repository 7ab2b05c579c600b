"""What trains: a directory for each trainer, which holds its steps and says what it can run."""
