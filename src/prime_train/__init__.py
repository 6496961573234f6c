"""prime-train checks, launches, watches, recovers and explains a language-model training run."""

__version__ = "0.1.0"
