"""Plans for the memory of a program: pure functions of its steps.

`live_ranges` says when values are wanted, `recompute` which of them are computed a second time instead of being kept,
`layout` where in one arena each lies.
"""
