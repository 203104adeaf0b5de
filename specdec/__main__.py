import sys

from specdec.edge.cli import main

if __name__ == "__main__":
    sys.exit(main())
