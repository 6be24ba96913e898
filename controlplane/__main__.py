"""`python -m controlplane` is `changeover`."""

from controlplane.cli import main

if __name__ == "__main__":
    main()
