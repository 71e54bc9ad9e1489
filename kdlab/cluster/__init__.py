"""Processes and connections of EDL-Dist; kdlab/papers/edl_dist makes the decisions.

served            the trainer's end: a SoftLabelSource
pool              a running pool: scheduler, machines and keeper; its kinds are:
local_pool        teachers as processes on this machine
remote_pool       a scheduler that runs already
deployed_pool     machines that deployers/ start: Dask's clusters, pods
emulated_pool     teachers that wait as long as real ones compute
group             ranks of one student; hosted_ranks: on machines of the cluster
coordination/     in the Dask scheduler: leases of teachers
teachers/         in a Dask worker: the teacher model behind an RPC handler
reader/           the DistilReader, a process beside the trainer, and the ring between them
transport/        messages, label wire, credentials
"""
