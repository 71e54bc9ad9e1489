"""The pool's coordinator: leases of teachers, inside the Dask scheduler; where leases are kept."""
