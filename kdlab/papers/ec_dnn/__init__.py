"""EC-DNN (arXiv:1606.00575): parallel training by ensemble and compression.

timetable   how many iterations each round has, and what weighs how much in it
rounds      Algorithm 1 for any number of workers that may be lost: who does what next
metrics     Eqs. 7 and 8, the speed of Table 1, and the check of Eq. 3
parallel    section 4.3: what a round takes on machines side by side
"""
