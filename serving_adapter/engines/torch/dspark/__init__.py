"""The DSpark drafter: a parallel backbone over target features, a sequential Markov head, a confidence head."""
