"""What runs under way show at this moment, read from the ends of their files."""
