"""What judges how a run ended, from what it left."""
