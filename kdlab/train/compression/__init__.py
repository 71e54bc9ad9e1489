"""How a global model is brought back to the size of a local one (EC-DNN, section 4.2).

distillation   pseudo labels, as in the paper
kind           the base of all; footnote 4 of the paper names others (quantisation, pruning,
               low rank, hashing), which are not built
"""
