"""How a net runs: the programs of whole passes, and their memory."""
