"""The pool's coordinator inside the Dask scheduler: leases of teachers, and their storage."""
