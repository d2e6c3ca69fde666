"""What workers exchange: gradients, and small values on which all must agree."""
