"""Processes and wires of EDL-Dist. What to do is decided in kdlab/papers/edl_dist.

served            the trainer's end: a SoftLabelSource
pool              a pool that is up: schedulers + machines, one keeper; what it is made of:
local_pool        teachers as processes on this machine
remote_pool       a scheduler that runs somewhere already
deployed_pool     machines that deployers/ start: Dask's clusters, pods
emulated_pool     teachers that only wait as long as real ones compute
group             ranks of one student; hosted_ranks: on machines of the cluster
coordination/     in the Dask scheduler: who is a teacher, and whose
teachers/         in a Dask worker: the teacher model behind an RPC handler
reader/           the DistilReader, a process beside the trainer, and the ring between them
wires/            how they talk
"""
