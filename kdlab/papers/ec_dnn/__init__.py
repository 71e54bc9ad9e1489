"""EC-DNN (arXiv:1606.00575): parallel training by ensemble and compression.

round_schedule   iterations and loss weights of each round
rounds           Algorithm 1 for any number of workers that may be lost: who does what next
own_clocks       Algorithm 1 of EASGD, whose workers do not wait for each other
metrics          Eqs. 7 and 8, the speed of Table 1, and the check of Eq. 3
parallel         section 4.3: the time of a round on parallel machines
"""
