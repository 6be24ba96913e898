"""`python -m simulator` is `simctl`: for programs that start it by their own interpreter."""

from simulator.cli import main

if __name__ == "__main__":
    main()
