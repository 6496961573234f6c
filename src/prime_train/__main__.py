"""`python -m prime_train`: the same as the script `prime-train`, which some ways to install a package leave out."""

from prime_train.cli.entry import main

if __name__ == "__main__":
    main()
