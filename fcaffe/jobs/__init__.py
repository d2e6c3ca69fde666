"""Jobs of several ranks: how they are started, watched and ended."""
