"""EDL-Dist (arXiv:2207.06667): elastic, heterogeneous teachers for distillation.

symbol  name in kdlab       where
------  ------------------  --------------------------------------------------
n       teachers            assignment.static_share, section 3.2, Line 1
t_s     t_s                 samples/s of one student that never waits
t_t     t_t                 samples/s of one teacher that never waits
lt, ut  lt, ut              hybrid_schedule, Algorithm 1
S(t)    volume              hybrid_schedule, Formula 2 (in samples)
I(t)    teachers            hybrid_schedule, Formula 2
α, β    hard_weight,        kdlab/losses, Algorithm 2 line 5
        soft_weight
TTL     ttl_s               leases, section 3.1
"""
