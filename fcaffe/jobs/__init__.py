"""Other workers: their ranks, what they exchange, and how they are started."""
