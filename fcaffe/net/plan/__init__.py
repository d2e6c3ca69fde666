"""Plans for the memory of a program: pure functions of its steps."""
