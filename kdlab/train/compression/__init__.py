"""How a global model is brought back to the size of a local one (EC-DNN, section 4.2).

distillation   pseudo labels, as in the paper
pruning, quantisation, low_rank   the same, and the compressed model has this form (footnote 4)
kind           the base of all
"""
