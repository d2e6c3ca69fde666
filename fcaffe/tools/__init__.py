"""What the commands other than `train` do, for scripts as well."""
