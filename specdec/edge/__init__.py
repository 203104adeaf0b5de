"""What touches the network. gRPC's core would write its own lines to the terminal, about every connection that ends;
a user who wants them sets GRPC_VERBOSITY."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
