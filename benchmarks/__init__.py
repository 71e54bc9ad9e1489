"""Evidence beside the package: benches (medians, interleaved in one run) and reproductions."""

WITH_SETTINGS = ("data", "ec_dnn", "soak")
WITH_PARTS = ("edl_dist", "gpu", "pipe_bd", "storm", "teacher")
