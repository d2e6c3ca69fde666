"""Plans for the memory of a program: pure functions of its steps.

`live_ranges` finds the steps in which values are live, `recompute` selects the values to recompute in backward,
`layout` assigns offsets in the arena.
"""
