"""Two sweeps side by side: which cells correspond, how they differ, and what that supports."""
