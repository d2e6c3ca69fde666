"""oneDNN as an engine; imported only where its library is."""
