"""A model of one iteration of data-parallel training, which predicts the speed on more workers."""
