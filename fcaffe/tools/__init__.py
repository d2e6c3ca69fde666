"""The work of the commands other than `train`. Scripts may use it as well."""
