"""Processes and wires of EDL-Dist. What to do is decided in kdlab/papers/edl_dist.

coordinator      in the Dask scheduler: who is a teacher, and whose
teacher_server   in a Dask worker: the teacher model behind an RPC handler
student_reader   the DistilReader, a process beside the trainer
served           the trainer's end: a SoftLabelSource
ring             shared memory between reader and trainer
local_pool       scheduler and teachers as processes on this machine
remote_pool      a scheduler that runs somewhere already
"""
