"""How the graph of a net is built from its prototxt."""
