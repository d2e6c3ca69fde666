"""What more workers would buy: a model of one iteration of data-parallel training."""
