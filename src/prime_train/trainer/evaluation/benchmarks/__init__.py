"""Questions with known answers for the model in training: eval.benchmarks. Every rank scores a part."""
