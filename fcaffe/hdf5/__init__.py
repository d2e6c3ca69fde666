"""Safe reading and writing of HDF5 files, for rows, models and solver states."""
