"""HDF5 files, of rows, models and solver states alike."""
