"""The DSpark drafter: a parallel backbone, a sequential Markov head, a confidence head."""
