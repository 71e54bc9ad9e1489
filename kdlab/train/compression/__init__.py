"""Compression of a global model to the size of a local one (EC-DNN, section 4.2).

distillation   pseudo labels, as in the paper
pruning, quantisation, low_rank   distillation to a model of this form (footnote 4)
kind           the base of all
"""
